"""Rules on the pages of real servers that were really made sick: the symptom is told, and its layer."""

import json
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest

from penstock.cli.doctor import Config, Floor, Patient
from penstock.tools.doctor.rule import diagnose
from penstock.tools.doctor.rules import RULES
from penstock.tools.doctor.signs import Look, Signs, signs_of
from tests.engine.poisoned import DIE, RAISE
from tests.machine import wait_until
from tests.server.serving import KEY, Server, serving

EVER = 4000
"""Tokens that no test waits for."""
COMMON = {"gateway-late", "neighbours", "stolen", "throttled", "swapping", "governor"}
"""What a busy test machine may add to any diagnosis."""


class Visit:
    """Two looks at a server, and what they tell."""

    def __init__(self, server: Server, key: str = "") -> None:
        self._patient = Patient(Config(url=server.url, api_key=key))
        self.renew()

    def renew(self) -> None:
        self.before, self._start_s = self._patient.look(), time.monotonic()

    def signs(self) -> Signs:
        return signs_of(self.before, self._patient.look(), time.monotonic() - self._start_s)

    def reported(self) -> set[str]:
        return reported(self.signs())


def reported(signs: Signs) -> set[str]:
    return {finding.id for finding in diagnose(signs, RULES).findings}


@contextmanager
def asking(server: Server, num_calls: int, **options: Any) -> Iterator[None]:
    """Clients that ask for a stream, read nothing of it, and leave with the block."""
    body = json.dumps({"prompt": "abc", "stream": True, **options}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as clients:
        for _ in range(num_calls):
            client = clients.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(head + body)
        yield


def test_a_server_that_does_well_is_told_nothing() -> None:
    with serving(model="oracle:step_ms=5") as server:
        visit = Visit(server)

        def does_well() -> bool:
            """A machine that stands still for a moment does not: the next visit may."""
            visit.renew()
            for number in range(6):
                server.post("/v1/completions", {"prompt": f"well {number}", "max_tokens": 10})
            return visit.reported() <= COMMON

        wait_until(does_well)
        signs = visit.signs()
    assert signs.num_ended == 6
    assert signs.output_tokens_per_s * signs.window_s == pytest.approx(60)
    assert signs.prompt_mean_tokens == len("well 0")
    assert 0.005 <= signs.itl_mean_s < 0.2
    assert 0.0 < signs.itl_p50_s <= signs.itl_p99_s, "on a busy machine tokens come in bursts"
    assert 0.005 <= signs.ttft_p50_s <= signs.ttft_p95_s
    assert signs.num_kv_tokens == 2048 * 16
    assert signs.missing == {}


def test_overload_is_told_from_its_beginning_to_its_end() -> None:
    flags = ["--max-sequences", "1", "--max-batch-tokens", "64", "--max-waiting", "4"]
    with serving(*flags, model="oracle:step_ms=60") as server:
        with asking(server, 1, max_tokens=EVER), ExitStack() as more:
            wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
            visit = Visit(server)
            more.enter_context(asking(server, 4, max_tokens=EVER))
            wait_until(lambda: server.metric("vllm:num_requests_waiting") == 4)
            assert "queue-grows" in visit.reported()
            visit.renew()
            refused = server.post("/v1/completions", {"prompt": "too many", "max_tokens": 5})
            assert refused.status_code == 503
            signs = visit.signs()
            assert {"sequence-limit", "refusing"} <= reported(signs)
            assert "queue-grows" not in reported(signs)
            _judge_by_roofline(visit)
        wait_until(lambda: "clients-leave" in visit.reported())
        for state in ("running", "waiting"):
            wait_until(lambda state=state: server.metric(f"vllm:num_requests_{state}") == 0)
        visit.renew()
        with asking(server, 2, max_tokens=20):
            wait_until(lambda: server.metric("vllm:request_success_total", 'finished_reason="length"') == 2)
        assert "queue-long" in visit.reported()


def _judge_by_roofline(visit: Visit) -> None:
    """60 ms a step are slow for one model on one machine, and fast for another on another."""
    wait_until(lambda: math.isfinite(visit.signs().itl_mean_s))
    signs = visit.signs()
    fast = Floor(Config(hardware="h100-sxm", model="llama-3.1-8b")).step_s(signs)
    slow = Floor(Config(hardware="l4", model="llama-3.1-70b")).step_s(signs)
    assert 0.001 < fast < 0.02
    assert slow > 0.1
    assert "below-roofline" in reported(replace(signs, floor_s=fast))
    assert "at-the-limit" in reported(replace(signs, floor_s=slow))


def test_a_cache_that_is_too_small_is_told() -> None:
    flags = ["--num-blocks", "16", "--max-context", "256", "--max-sequences", "8", "--max-batch-tokens", "64"]
    with serving(*flags, model="oracle:step_ms=5") as server:
        visit = Visit(server)
        with asking(server, 6, max_tokens=200):
            wait_until(lambda: server.metric("vllm:num_preemptions_total") > 0)
            wait_until(lambda: server.metric("vllm:num_requests_waiting") > 0)
            assert "preempting" in visit.reported()
            wait_until(lambda: _is_seen(visit, "kv-full"))


def _is_seen(visit: Visit, name: str) -> bool:
    visit.renew()
    return name in visit.reported()


def test_an_engine_that_fails_dies_and_hangs_is_told() -> None:
    with serving(model="oracle:step_ms=5") as server:
        visit = Visit(server)
        assert server.post("/v1/completions", {"prompt": [RAISE, 1], "max_tokens": 3}).status_code == 500
        assert {"requests-fail", "server-faults"} <= visit.reported()
        visit.renew()
        server.post("/v1/completions", {"prompt": [DIE, 1], "max_tokens": 3})
        wait_until(lambda: server.get("/health").status_code == 200)
        assert "engine-restarting" in visit.reported()
        assert "server-restarted" not in visit.reported()
        visit.renew()
        assert "engine-restarted" in visit.reported()
        with asking(server, 1, max_tokens=EVER):
            wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
            engine = server.engine_pid
            os.kill(engine, signal.SIGSTOP)
            wait_until(lambda: _is_seen(visit, "stuck"))
            wait_until(lambda: "engine-down" in visit.reported())
            with suppress(ProcessLookupError):  # it may have been replaced meanwhile
                os.kill(engine, signal.SIGCONT)
        used = visit.before
    with serving() as another:
        assert "server-restarted" in reported(signs_of(used, Visit(another).before, 1.0))


@pytest.mark.slow
def test_steps_that_take_seconds_are_told() -> None:
    with serving("--max-batch-tokens", "512", model="oracle:step_ms=2100") as server:
        visit = Visit(server)
        assert "not-ready" in reported(signs_of(visit.before, visit.before, 1.0))
        answer = server.post("/v1/completions", {"prompt": "long" * 75, "max_tokens": 2})
        assert answer.status_code == 200
        assert {"slow-prompts", "cache-misses", "slow-tokens"} <= visit.reported()


def test_clients_that_do_not_read_are_told() -> None:
    much = {"prompt": "x" * 1000, "echo": True, "logprobs": 5, "n": 8, "max_tokens": 1}
    with serving(model="scripted:") as server, asking(server, 4, **much):
        wait_until(lambda: server.metric("vllm:generation_tokens_total") == 4 * 8)
        wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
        visit = Visit(server)
        signs = visit.signs()
        assert "slow-readers" in reported(signs)
        assert (signs.num_running, signs.num_unread, signs.num_calls) == (0, 4, 4)
        server.post("/v1/embeddings", {"input": "a vector"})
        assert math.isnan(visit.signs().num_unread), "calls for vectors never run, so nothing can be told beside them"


def test_a_key_that_is_missing_is_told_to_the_doctor_and_of_the_clients() -> None:
    with serving(key=KEY) as server:
        assert reported(signs_of(Visit(server).before, Visit(server).before, 1.0)) >= {"locked"}
        visit = Visit(server, KEY)
        assert visit.reported() - COMMON == set()
        for _ in range(3):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "let me in"})
        assert "locked-out" in visit.reported()
        visit.renew()
        for _ in range(3):
            server.post("/v1/completions", {"prompt": "hot", "temperature": -1})
        assert "bad-requests" in visit.reported()
        assert "no-metrics" in reported(_signs_at(server.url + "/nothing", KEY))
        _hold_up(server, visit)
        assert "refused" in reported(_signs_at("http://127.0.0.1:9"))


def _signs_at(url: str, key: str = "") -> Signs:
    look: Look = Patient(Config(url=url, api_key=key)).look()
    return signs_of(look, look, 1.0)


def _hold_up(server: Server, visit: Visit) -> None:
    """A server that gets no processor while it is looked at, twice."""
    looks = []
    for _ in range(2):
        os.kill(server.process.pid, signal.SIGSTOP)
        timer = threading.Timer(0.6, os.kill, (server.process.pid, signal.SIGCONT))
        timer.start()
        visit.renew()
        timer.join()
        looks.append(visit.before)
    late = replace(looks[1], seconds={"/health": min(sum(look.seconds.values()) for look in looks)})
    assert "gateway-late" in reported(signs_of(late, late, 1.0))
