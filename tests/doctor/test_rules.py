"""Every rule speaks on one side of its threshold and is silent on the other; a healthy server is told nothing."""

import math
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from penstock.cli import doctor, serve
from penstock.console.flags import MISSING, flags_of
from penstock.tools.doctor.finding import Verdict
from penstock.tools.doctor.rule import diagnose
from penstock.tools.doctor.rules import RULES, TRIGGERS
from penstock.tools.doctor.signs import REFUSED, SILENT, UNINTELLIGIBLE, UNREACHABLE, Look, Signs, signs_of

MEASURED = [sign.name for sign in fields(Signs) if "measure" in sign.metadata]
HEALTHY = Signs(
    window_s=10.0,
    metrics_status=200.0,
    health_status=200.0,
    ready_status=200.0,
    health_s=0.002,
    has_restarted=0.0,
    num_running_before=12.0,
    num_running=10.0,
    num_waiting_before=0.0,
    num_waiting=0.0,
    kv_usage_fraction=0.4,
    num_kv_tokens=100_000.0,
    num_unread_before=0.0,
    num_unread=0.0,
    num_calls=10.0,
    prompt_tokens_per_s=2000.0,
    output_tokens_per_s=500.0,
    started_per_s=5.0,
    ended_per_s=5.0,
    steps_per_s=50.0,
    refused_per_s=0.0,
    preemptions_per_s=0.0,
    num_errors=0.0,
    num_aborts=1.0,
    num_ended=50.0,
    num_new_restarts=0.0,
    num_restarts=0.0,
    num_answers=50.0,
    num_server_faults=0.0,
    num_locked_out=0.0,
    num_bad_requests=1.0,
    ttft_p50_s=0.1,
    ttft_p95_s=0.3,
    ttft_p99_s=0.4,
    itl_mean_s=0.021,
    itl_p50_s=0.02,
    itl_p99_s=0.05,
    queue_mean_s=0.001,
    queue_p95_s=0.05,
    prefill_mean_s=0.08,
    prompt_mean_tokens=400.0,
    step_sequences=4.0,
    good_fraction=0.99,
    kv_waste_fraction=0.02,
    dollars_per_1k=0.001,
    hit_fraction=0.5,
    drafts_per_s=20.0,
    accepted_fraction=0.6,
    stolen_fraction=0.01,
    others_fraction=0.05,
    waited_per_s=0.2,
    dollars_per_request=0.001,
    throttled_fraction=0.0,
    swapped_per_s=0.0,
    slow_governor=0.0,
    remote_fraction=0.01,
    gpu_clock_fraction=0.9,
    gpu_power_limited=0.0,
    gpu_thermal_limited=0.0,
    gpu_ecc_errors=0.0,
    gpu_xid_errors=0.0,
    gpu_pcie_fraction=1.0,
    gpu_other_bytes=0.0,
    max_batch_tokens=1024.0,
    weight_bits=16.0,
    energy_per_token_j=0.5,
    energy_per_request_j=50.0,
    mfu=0.3,
    mbu=0.6,
    floor_s=0.01,
)

CASES: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "unreachable": ({"metrics_status": SILENT}, {"metrics_status": UNREACHABLE}),
    "refused": ({"metrics_status": UNREACHABLE}, {"metrics_status": REFUSED}),
    "silent": ({"metrics_status": REFUSED}, {"metrics_status": SILENT}),
    "unintelligible": ({"metrics_status": SILENT}, {"metrics_status": UNINTELLIGIBLE}),
    "locked": ({"metrics_status": 400}, {"metrics_status": 401}),
    "no-metrics": ({"metrics_status": 299}, {"metrics_status": 302}),
    "gpu-xid": ({"gpu_xid_errors": 0}, {"gpu_xid_errors": 1}),
    "gpu-ecc": ({"gpu_ecc_errors": 0}, {"gpu_ecc_errors": 1}),
    "throttled": ({"throttled_fraction": 0.05}, {"throttled_fraction": 0.06}),
    "stolen": ({"stolen_fraction": 0.05}, {"stolen_fraction": 0.06}),
    "swapping": ({"swapped_per_s": 50}, {"swapped_per_s": 51}),
    "gpu-hot": ({"gpu_thermal_limited": 0}, {"gpu_thermal_limited": 1}),
    "gpu-pcie": ({"gpu_pcie_fraction": 0.75}, {"gpu_pcie_fraction": 0.5}),
    "gpu-shared": ({"gpu_other_bytes": 1 << 30}, {"gpu_other_bytes": 2 << 30}),
    "neighbours": ({"others_fraction": 0.2}, {"others_fraction": 0.21}),
    "remote-memory": ({"remote_fraction": 0.2}, {"remote_fraction": 0.21}),
    "governor": ({"slow_governor": 0.5}, {"slow_governor": 0.6}),
    "gpu-power": ({"gpu_power_limited": 0}, {"gpu_power_limited": 1}),
    "small-steps": (
        {"max_batch_tokens": 50, "prefill_mean_s": 0.3},
        {"max_batch_tokens": 49, "prefill_mean_s": 0.3},
    ),
    "wide-weights": ({"weight_bits": 24}, {"weight_bits": 32}),
    "engine-down": ({"health_status": 499}, {"health_status": 503}),
    "not-ready": ({"health_status": 503, "ready_status": 503}, {"ready_status": 503}),
    "stuck": ({"steps_per_s": 0.1}, {"steps_per_s": 0}),
    "server-restarted": ({"has_restarted": 0}, {"has_restarted": 1}),
    "engine-restarting": ({"num_restarts": 3}, {"num_restarts": 3, "num_new_restarts": 1}),
    "engine-restarted": ({"num_restarts": 1, "num_new_restarts": 1}, {"num_restarts": 1}),
    "requests-fail": ({"num_errors": 1, "num_ended": 100}, {"num_errors": 1, "num_ended": 99}),
    "server-faults": ({"num_server_faults": 0}, {"num_server_faults": 1}),
    "refusing": ({"refused_per_s": 0}, {"refused_per_s": 0.1}),
    "queue-grows": (
        {"num_waiting_before": 8, "num_waiting": 10},
        {"num_waiting_before": 7, "num_waiting": 10, "kv_usage_fraction": 0.8},
    ),
    "kv-full": (
        {"num_waiting_before": 1, "num_waiting": 1, "kv_usage_fraction": 0.89},
        {"num_waiting_before": 1, "num_waiting": 1, "kv_usage_fraction": 0.9},
    ),
    "preempting": ({"preemptions_per_s": 0.25}, {"preemptions_per_s": 0.26}),
    "sequence-limit": (
        {"num_waiting_before": 3, "num_waiting": 2},
        {"num_waiting_before": 3, "num_waiting": 3, "kv_usage_fraction": 0.69},
    ),
    "queue-long": ({"queue_p95_s": 1.0}, {"queue_p95_s": 1.1}),
    "gateway-late": ({"health_s": 0.25}, {"health_s": 0.26}),
    "prefill-stalls": ({"itl_p50_s": 0.03, "itl_p99_s": 0.24}, {"itl_p50_s": 0.03, "itl_p99_s": 0.25}),
    "below-roofline": ({"itl_mean_s": 0.03}, {"itl_mean_s": 0.031}),
    "at-the-limit": ({"itl_mean_s": 0.061, "floor_s": 0.04}, {"itl_mean_s": 0.059, "floor_s": 0.04}),
    "slow-tokens": ({"itl_p50_s": 0.2}, {"itl_p50_s": 0.21}),
    "slow-prompts": ({"prefill_mean_s": 2.0}, {"prefill_mean_s": 2.1}),
    "cache-misses": ({"hit_fraction": 0.05, "prefill_mean_s": 0.5}, {"hit_fraction": 0.04, "prefill_mean_s": 0.5}),
    "clients-leave": ({"num_aborts": 10}, {"num_aborts": 11}),
    "slow-readers": ({"num_unread_before": 3, "num_unread": 2}, {"num_unread_before": 3, "num_unread": 3}),
    "locked-out": ({"num_locked_out": 2}, {"num_locked_out": 3}),
    "bad-requests": ({"num_bad_requests": 10}, {"num_bad_requests": 11}),
}
"""For each rule the signs that keep it silent, just, and those that make it speak, just."""

FLAGS = {
    name
    for config in (serve.Config, doctor.Config)
    for flag in flags_of(config)
    for name in (f"--{flag.key}", *([f"--no-{flag.key}"] if flag.empty is not MISSING else []))
}


class Watched:
    """Signs that tell which of them were looked at."""

    def __init__(self, signs: Signs) -> None:
        self.seen: set[str] = set()
        self._signs = signs

    def __getattr__(self, name: str) -> Any:
        self.seen.add(name)
        return getattr(self._signs, name)


def spoken(signs: Signs) -> list[str]:
    return [finding.id for finding in diagnose(signs, RULES).findings]


def test_every_rule_has_a_case_and_a_name_of_its_own_and_every_trigger_a_rule() -> None:
    assert [rule.id for rule in RULES] == list(dict.fromkeys(rule.id for rule in RULES))
    assert {rule.id for rule in RULES} == set(CASES)
    assert {rule.id for rule in RULES} == set(TRIGGERS)
    for rule in RULES:
        assert rule.verdict is not Verdict.OK
        assert rule.symptom
        assert rule.remedy


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks_on_one_side_of_its_threshold_only(name: str) -> None:
    well, sick = CASES[name]
    assert name not in spoken(replace(HEALTHY, **well))
    assert name in spoken(replace(HEALTHY, **sick))


def test_a_healthy_server_is_told_nothing_and_everything_was_examined() -> None:
    assert all(math.isfinite(getattr(HEALTHY, one.name)) for one in fields(Signs) if one.name != "missing")
    diagnosis = diagnose(HEALTHY, RULES)
    assert diagnosis.findings == ()
    assert diagnosis.unexamined == ()


def test_an_idle_server_is_told_nothing() -> None:
    quiet = {name: 0.0 for name in MEASURED if name.endswith("per_s") or name.startswith("num_")}
    latencies = {name: math.nan for name in MEASURED if name not in quiet and name != "has_restarted"}
    idle = replace(HEALTHY, **(quiet | latencies | {"kv_usage_fraction": 0.0}))
    assert spoken(idle) == []
    assert idle.is_idle
    for busy in ({"num_running": 1.0}, {"output_tokens_per_s": 1.0}, {"prompt_tokens_per_s": math.nan}):
        assert not replace(idle, **busy).is_idle


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_reads_what_it_says_it_reads(rule: Any) -> None:
    signs = Watched(replace(HEALTHY, **CASES[rule.id][1]))
    assert rule.condition(signs)
    assert "nan" not in rule.evidence(signs)
    assert signs.seen - {"window_s"} == set(rule.reads)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_silent_where_a_sign_is_unknown(rule: Any) -> None:
    sick = replace(HEALTHY, **CASES[rule.id][1])
    for sign in rule.reads:
        unknown = replace(sick, **{sign: math.nan}, missing={sign: ("some_metric",)})
        assert rule.id not in spoken(unknown)
        unexamined = {one.id: names for one, names in diagnose(unknown, RULES).unexamined}
        assert "some_metric" in unexamined[rule.id]


@pytest.mark.parametrize("status", [REFUSED, SILENT, UNINTELLIGIBLE, UNREACHABLE])
def test_a_server_that_gives_no_answer_is_told_that_and_nothing_else(status: float) -> None:
    look = Look(dict.fromkeys(("/version", "/health", "/readyz", "/metrics"), status), {}, {})
    assert len(spoken(signs_of(look, look, 1.0))) == 1


def test_how_late_a_server_is_comes_from_two_answers_or_is_not_known() -> None:
    answered, silent = Look({}, {"/health": 0.5}, {}), Look({}, {}, {})
    assert signs_of(answered, replace(answered, seconds={"/health": 0.4}), 1.0).health_s == 0.4
    for looks in ((answered, silent), (silent, answered), (silent, silent)):
        assert math.isnan(signs_of(*looks, 1.0).health_s)


def test_the_likeliest_cause_comes_first() -> None:
    signs = replace(HEALTHY, num_waiting_before=1, num_waiting=50, kv_usage_fraction=0.99, queue_p95_s=9, num_aborts=40)
    places = [rule.id for rule in RULES]
    found = spoken(signs)
    assert found == sorted(found, key=places.index)
    assert found == ["kv-full", "queue-grows", "queue-long", "clients-leave"], "causes before symptoms"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_remedies_name_only_flags_that_exist(rule: Any) -> None:
    assert set(re.findall(r"--[a-z][a-z-]*", rule.remedy)) <= FLAGS


def test_neighbours_that_use_spare_time_are_no_fault() -> None:
    assert spoken(replace(HEALTHY, others_fraction=0.6, waited_per_s=0.02)) == []
    assert spoken(replace(HEALTHY, others_fraction=0.6, waited_per_s=0.3)) == ["neighbours"]
