"""Laws of the doctor before a router: it judges what a router can see, says what it cannot, and makes up no figure."""

import json
import math
from dataclasses import replace

import httpx
import pytest

from penstock.cli.main import main
from penstock.metrics.page import parse_page
from penstock.tools.doctor.routing import (
    EVIDENCE,
    ROUTER_RULES,
    ReplicaSigns,
    RouterSigns,
    diagnose_router,
    is_router,
    router_signs,
)
from tests.machine import PATIENCE_S, wait_until
from tests.router.service import service

FIRST = ReplicaSigns("a", True, False, 3.0, 0.0, 0.4, 50.0, 0.0)
SECOND = replace(FIRST, name="b")
SOUND = RouterSigns(
    window_s=10.0,
    policy="least-pending",
    replicas=(FIRST, SECOND),
    num_open=6.0,
    num_parked=0.0,
    num_ended=100.0,
    num_sent=100.0,
    num_refused=0.0,
    num_retries=1.0,
    num_failovers=0.0,
    tokens_per_s=900.0,
    first_byte_p50_s=0.1,
    first_byte_p99_s=0.4,
    overhead_p99_s=0.0004,
)
WRONG = {
    "no-replica": {"replicas": (replace(FIRST, is_ready=False), replace(SECOND, is_ready=False))},
    "breaker": {"replicas": (FIRST, replace(SECOND, is_breaker_open=True))},
    "replica-down": {"replicas": (FIRST, replace(SECOND, is_ready=False))},
    "replica-failing": {"replicas": (FIRST, replace(SECOND, num_failed=2.0))},
    "parked": {"num_parked": 3.0},
    "idle-beside-queue": {"replicas": (replace(FIRST, num_waiting=9.0), replace(SECOND, num_pending=0.0))},
    "skew": {"replicas": (replace(FIRST, num_sent=97.0), replace(SECOND, num_sent=3.0))},
    "replica-kv-full": {"replicas": (FIRST, replace(SECOND, kv_usage_fraction=0.99))},
    "router-refuses": {"num_refused": 20.0},
    "retries": {"num_retries": 20.0},
    "router-slow": {"overhead_p99_s": 0.05},
}


def test_a_sound_router_has_no_finding_and_every_rule_has_its_mistake() -> None:
    assert diagnose_router(SOUND) == ()
    assert set(WRONG) == {rule.id for rule in ROUTER_RULES} == set(EVIDENCE)


@pytest.mark.parametrize("rule", WRONG)
def test_what_is_wrong_is_found_and_nothing_else(rule: str) -> None:
    (found,) = diagnose_router(replace(SOUND, **WRONG[rule]))
    assert found.id == rule
    assert found.evidence
    assert found.remedy


def test_an_idle_router_has_no_latencies_and_no_shares() -> None:
    page = parse_page(
        'penstock_router_open 0\npenstock_router_parked 0\npenstock_router_replica_ready{replica="a"} 1\n'
        'penstock_router_replica_pending{replica="a"} 0\n'
    )
    signs = router_signs(page, page, 1.0)
    assert is_router(page)
    assert not is_router(parse_page("vllm:num_requests_running 0\n"))
    assert math.isnan(signs.first_byte_p50_s)
    assert math.isnan(signs.share(signs.replicas[0]))
    assert math.isnan(signs.replicas[0].num_waiting)
    assert diagnose_router(signs) == ()


def test_doctor_and_top_read_a_real_router(capsys: pytest.CaptureFixture[str]) -> None:
    with service("--policy", "round-robin") as router:
        with router.http() as http:
            wait_until(lambda: http.get("/readyz").status_code == 200)
            ready = 'penstock_router_replica_ready{replica="'
            wait_until(lambda: http.get("/metrics").text.count(ready) == 2)
            wait_until(lambda: all(line.endswith(" 1") for line in _lines(http, ready)))
            for _ in range(4):
                answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=PATIENCE_S)
                assert answer.status_code == 200
        assert main(["doctor", router.url, "--window-s", "0.2", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["kind"] == "router"
        assert told["signs"]["policy"] == "round-robin"
        assert [one["is_ready"] for one in told["replicas"]] == [True, True]
        assert told["signs"]["first_byte_p50_ms"] is None
        assert main(["top", router.url, "--once", "--every-s", "0.1"]) == 0
        shown = capsys.readouterr().out
        assert "round-robin" in shown
        assert "2 of 2" in shown
        router.servers[1].stop()
        with router.http() as http:
            wait_until(lambda: any(line.endswith(" 0") for line in _lines(http, ready)))
        assert main(["doctor", router.url, "--window-s", "0.2"]) == 0
        assert "a replica takes no requests" in capsys.readouterr().out


def _lines(http: httpx.Client, start: str) -> list[str]:
    return [line for line in http.get("/metrics").text.splitlines() if line.startswith(start)]
