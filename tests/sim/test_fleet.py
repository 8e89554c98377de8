"""Laws of fleets that do more than serve: speculation, prefill apart, scaling, shedding, prefixes, and their traces."""

import json
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.service.cluster.scaling import Pressure, Scaler, Scaling, ServedRate, predicted_attainment
from penstock.service.router.policy import POLICIES
from penstock.tools.cost.hardware import Link
from penstock.tools.sim.handover import Disaggregation
from penstock.tools.sim.replica.speculation import Guessing
from penstock.tools.sim.simulation import simulate
from penstock.tools.sim.tracing import SimulationTracer
from penstock.tools.workload.arrivals import AtOnce, Constant
from penstock.tools.workload.lengths import Fixed
from penstock.tools.workload.workload import SharedPrefix
from tests.sim.fleets import make_fleet, make_workload, with_requests

LINK = Link("network", 40e9, 1e-5)


def test_tokens_per_round_are_those_of_the_formula():
    assert Guessing(5, 0.8).tokens_per_round == pytest.approx(3.69, abs=0.005)
    assert Guessing(3, 1.0).tokens_per_round == 4
    assert Guessing(3, 0.0).tokens_per_round == 1


def test_speculation_gives_the_expected_tokens_a_step_and_loses_none():
    workload = make_workload(num_requests=20, rate=2.0, answers=Fixed(400))
    fleet = make_fleet(guessing=Guessing(5, 0.8, draft_cost=0.02, seed=3))
    drafted, plain = simulate(fleet, workload), simulate(make_fleet(), workload)
    assert drafted.summary.num_output_tokens == plain.summary.num_output_tokens == 20 * 400
    (replica,) = drafted.replicas
    num_rounds = replica.num_drafted / 5
    assert 1 + replica.num_accepted / num_rounds == pytest.approx(3.69, rel=0.03)
    assert plain.summary.tpot.mean / drafted.summary.tpot.mean == pytest.approx(3.69 / (1 + 5 * 0.02), rel=0.1)
    assert simulate(fleet, workload).summary == drafted.summary
    other = simulate(make_fleet(guessing=Guessing(5, 0.8, draft_cost=0.02, seed=4)), workload)
    assert other.summary != drafted.summary


def test_costly_drafts_that_never_come_true_only_delay():
    workload = make_workload(num_requests=10, rate=2.0)
    drafted = simulate(make_fleet(guessing=Guessing(4, 0.0, draft_cost=0.25)), workload)
    plain = simulate(make_fleet(), workload)
    assert drafted.replicas[0].num_accepted == 0
    assert drafted.summary.tpot.mean > 1.9 * plain.summary.tpot.mean


def test_nobody_drafts_in_a_large_batch():
    workload = make_workload(num_requests=30, arrivals=AtOnce(), answers=Fixed(50), prompts=Fixed(20))
    result = simulate(make_fleet(guessing=Guessing(4, 0.9, max_sequences=8)), workload)
    assert result.replicas[0].num_drafted == 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("acceptance", "is_faster"), [(0.85, True), (0.05, False)])
def test_left_to_the_rule_speculation_gains_or_is_left(acceptance, is_faster, depth):
    workload = make_workload(num_requests=20, rate=2.0, answers=Fixed(300))
    auto = simulate(make_fleet(depth=depth, guessing=Guessing(None, acceptance, draft_cost=0.02)), workload)
    plain = simulate(make_fleet(depth=depth), workload)
    assert auto.summary.num_output_tokens == plain.summary.num_output_tokens
    gain = plain.summary.tpot.mean / auto.summary.tpot.mean
    assert gain > 1.5 if is_faster else gain > 0.97


def apart(num_prefill=1, num_decode=1, kv_bytes=131_072.0, link=LINK, **rest):
    split = Disaggregation(num_prefill, link, kv_bytes, rest.pop("local_below", 0), rest.pop("follows_rule", False))
    return make_fleet(num_replicas=num_decode, split=split, **rest)


@pytest.mark.parametrize("predicts", [True, False])
def test_prefill_apart_serves_everything_once(predicts):
    workload = make_workload(num_requests=60, rate=20.0)
    result = simulate(apart(predicts=predicts), workload)
    assert result.summary.outcomes["length"] == 60
    assert result.summary.num_output_tokens == workload.num_output_tokens
    num_single = sum(request.params.max_tokens == 1 for request in workload.requests)
    assert result.num_transfers == 60 - num_single
    assert result.num_lost_transfers == 0
    prefill, decode = result.replicas
    assert (prefill.name, decode.name) == ("prefill 0", "decode 0")
    assert prefill.num_computed_tokens == workload.num_prompt_tokens - sum(
        len(request.prompt) for request in workload.requests if request.params.max_tokens == 1
    )
    # A decode replica computes the token it was handed and what does not fill a block.
    assert decode.num_computed_tokens < workload.num_output_tokens + 17 * 60 + 300 * num_single


def test_decodes_run_undisturbed_where_prompts_are_computed_elsewhere():
    """A long prompt stalls those who generate beside it, not those on another replica."""
    workload = make_workload(num_requests=80, rate=10.0, prompts=Fixed(6000), answers=Fixed(100))
    together = simulate(make_fleet(num_replicas=2, max_batch_tokens=6000), workload)
    separate = simulate(apart(max_batch_tokens=6000), workload)
    assert separate.summary.itl.p99 < together.summary.itl.p99 / 3
    slow = simulate(apart(max_batch_tokens=6000, link=Link("network", 1e9, 1e-5)), workload)
    assert slow.mean_transfer_s > 0.78 > 10 * separate.mean_transfer_s
    assert slow.summary.e2e.mean > separate.summary.e2e.mean + 0.5


def test_short_prompts_stay_where_they_are_answered():
    workload = make_workload(num_requests=40, rate=20.0)
    result = simulate(apart(local_below=150), workload)
    far = [r for r in workload.requests if len(r.prompt) >= 150 and r.params.max_tokens > 1]
    assert result.num_transfers == len(far) > 0
    assert result.replicas[0].num_requests == len(far)


def test_prompts_are_handed_over_where_the_rule_says_that_it_pays():
    """Not one by one, when nobody else waits; not over a slow link; under load, with less stalling than together."""
    few = make_workload(num_requests=10, arrivals=Constant(0.2), prompts=Fixed(3000), answers=Fixed(20))
    many = make_workload(num_requests=80, rate=10.0, prompts=Fixed(6000), answers=Fixed(100))
    assert simulate(apart(follows_rule=True), few).num_transfers <= 1  # the first, when nothing is known
    slow = Link("network", 1e7, 1e-5)
    assert simulate(apart(follows_rule=True, link=slow), many).num_transfers <= 2
    ruled = simulate(apart(follows_rule=True, max_batch_tokens=6000), many)
    assert ruled.num_transfers > 40
    together = simulate(make_fleet(num_replicas=2, max_batch_tokens=6000), many)
    assert ruled.summary.itl.p99 < together.summary.itl.p99


LOADS = [(6000, 100, rate) for rate in (0.8, 2.4, 4.0, 5.6)] + [(1500, 300, rate) for rate in (2.0, 6.0, 10.0, 14.0)]


@pytest.mark.parametrize("bandwidth", [25e9, pytest.param(1e9, marks=pytest.mark.slow)], ids=["fast", "slow"])
def test_the_rule_picks_the_winner_in_nine_of_ten_loads(bandwidth):
    """Four loads of two mixes of lengths: as good as handing over all or nothing, by the mean time to the end."""
    won = 0
    for num_prompt, num_answer, rate in LOADS:
        workload = make_workload(num_requests=100, rate=rate, prompts=Fixed(num_prompt), answers=Fixed(num_answer))
        always, never, ruled = (
            simulate(
                apart(link=Link("network", bandwidth, 1e-5), max_batch_tokens=2048, **how), workload
            ).summary.e2e.mean
            for how in ({}, {"local_below": 10**9}, {"follows_rule": True})
        )
        won += ruled <= 1.05 * min(always, never)
    assert won >= 0.9 * len(LOADS)


def test_a_fleet_grows_under_load_and_shrinks_after_it():
    workload = make_workload(num_requests=900, arrivals=Constant(30.0), prompts=Fixed(100), answers=Fixed(200))
    late = make_workload(1, num_requests=5, arrivals=Constant(0.02), answers=Fixed(20))
    requests = [*workload.requests]
    requests += [
        replace(one, request_id=10_000 + i, arrival_s=60.0 + one.arrival_s) for i, one in enumerate(late.requests)
    ]
    scaling = Scaling(1, 4, target=10.0, cold_start_s=5.0, down_delay_s=20.0, interval_s=1.0)
    scaled = simulate(make_fleet(scaling=scaling, max_sequences=16), requests)
    fixed = simulate(make_fleet(num_replicas=4, max_sequences=16), requests)
    alone = simulate(make_fleet(num_replicas=1, max_sequences=16), requests)
    assert scaled.num_starts >= 2
    assert scaled.num_stops >= 2
    assert scaled.summary.num_successes == 905
    assert fixed.summary.ttft.p95 < scaled.summary.ttft.p95 < alone.summary.ttft.p95
    assert scaled.replica_seconds < 0.6 * fixed.replica_seconds
    assert simulate(make_fleet(scaling=scaling, max_sequences=16), requests).summary == scaled.summary


def test_a_fleet_may_sleep_and_wake_for_the_first_request():
    scaling = Scaling(0, 2, cold_start_s=7.0, interval_s=0.5)
    result = simulate(make_fleet(scaling=scaling), make_workload(num_requests=3, rate=50.0))
    assert result.summary.num_successes == 3
    assert 7.0 <= min(one.ttft_s for one in result.timelines) < 8.0


def test_less_must_suffice_for_a_while():
    scaler = Scaler(Scaling(1, 8, target=10.0, down_delay_s=30.0))
    assert scaler.wanted(2, 75, 1.0, 0.0) == 8
    assert scaler.wanted(8, 5, 1.0, 10.0) == 8
    assert scaler.wanted(8, 80, 1.0, 30.0) == 8, "the count starts anew"
    assert scaler.wanted(8, 5, 1.0, 50.0) == 8
    assert scaler.wanted(8, 5, 1.0, 80.0) == 7
    by_use = Scaler(Scaling(1, 8, target=0.5, by="utilisation"))
    assert by_use.wanted(3, 9, 1.0, 0.0) == 6


@given(st.integers(0, 12), st.integers(0, 200), st.floats(0.01, 20.0), st.floats(0.05, 10.0))
def test_as_many_replicas_are_wanted_as_predict_the_attainment(num_now, num_waiting, served_per_s, ttft_s):
    scaling = Scaling(0, 50, target=1e6, ttft_s=ttft_s, down_delay_s=0.0)
    pressure = Pressure(0.0, num_waiting, served_per_s)
    wanted = Scaler(scaling).wanted(num_now, 0, 0.0, 0.0, pressure)
    if wanted < 50:
        assert predicted_attainment(wanted, pressure, ttft_s) >= 0.95
    if wanted > num_now:
        assert predicted_attainment(wanted - 1, pressure, ttft_s) < 0.95, "and no more"


def test_blocks_in_use_ask_for_replicas():
    scaler = Scaler(Scaling(1, 8, target=100.0, kv_target=0.5))
    assert scaler.wanted(2, 5, 1.0, 0.0, Pressure(kv_fraction=0.9)) == 4
    assert scaler.wanted(2, 500, 1.0, 0.0, Pressure(kv_fraction=0.9)) == 5, "the largest of all counts"


def test_a_rate_is_that_of_the_best_moments():
    rate = ServedRate()
    assert rate.note(0, 1, 0.0) == 0.0
    assert rate.note(10, 2, 1.0) == 5.0
    assert rate.note(10, 2, 2.0) == pytest.approx(0.995 * 5.0)
    assert ServedRate().note(9, 1, 5.0, is_full=False) == 0.0, "what it does with little to do says nothing"


def test_a_fleet_that_scales_by_predicted_attainment_meets_more_of_it():
    workload = make_workload(num_requests=900, arrivals=Constant(30.0), prompts=Fixed(100), answers=Fixed(200))
    plain = Scaling(1, 4, target=1000.0, cold_start_s=5.0, interval_s=1.0)
    alone = simulate(make_fleet(scaling=plain, max_sequences=16), workload)
    scaled = simulate(make_fleet(scaling=replace(plain, ttft_s=2.0), max_sequences=16), workload)
    assert (alone.num_starts, scaled.num_starts > 0) == (0, True)
    assert scaled.summary.ttft.p50 < alone.summary.ttft.p50


def test_a_full_fleet_refuses_and_counts_apart():
    workload = make_workload(num_requests=50, arrivals=AtOnce(), answers=Fixed(50))
    result = simulate(make_fleet(num_replicas=2, max_pending=10), workload)
    assert result.num_refused == result.summary.outcomes["refused"] == 30
    assert result.summary.outcomes["length"] == 20
    queue = simulate(make_fleet(max_waiting=8, max_sequences=4), workload)
    assert queue.num_refused == 0 < queue.summary.outcomes["refused"]


def test_routing_by_prefix_finds_more_in_caches():
    workload = make_workload(num_requests=300, rate=40.0, prompts=Fixed(32), prefix=SharedPrefix(512, 40))
    hits = {}
    for name in ("round-robin", "prefix-predicted", "prefix-reported", "consistent-hash"):
        result = simulate(make_fleet(num_replicas=4, policy=partial(POLICIES[name], 0)), workload)
        hits[name] = result.summary.num_cached_tokens
        assert hits[name] == sum(replica.num_cached_tokens for replica in result.replicas)
    assert all(hits[name] > 1.15 * hits["round-robin"] for name in hits if name != "round-robin")


def test_sessions_stay_together():
    workload = with_requests(
        make_workload(num_requests=100), lambda one: replace(one, tenant=f"user {one.request_id % 5}")
    )
    result = simulate(make_fleet(num_replicas=8, policy=partial(POLICIES["session"], 0)), workload)
    shares = sorted(replica.num_requests for replica in result.replicas)
    assert all(share % 20 == 0 for share in shares)


@pytest.mark.parametrize("predicts", [True, False])
def test_a_trace_shows_steps_loads_and_requests(predicts):
    tracer = SimulationTracer()
    result = simulate(make_fleet(num_replicas=2, predicts=predicts), make_workload(num_requests=10), tracer=tracer)
    events = json.loads(tracer.text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in steps) == result.num_steps
    busy_s = sum(replica.busy_fraction * replica.seconds for replica in result.replicas)
    assert sum(event["dur"] for event in steps) == pytest.approx(1e6 * busy_s)
    for opening, closing in (("b", "e"),):
        assert sum(e["ph"] == opening for e in events) == sum(e["ph"] == closing for e in events) >= 10
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"requests", "replica 0", "replica 1"}
    assert {"running", "waiting"} == {name for e in events if e["name"] == "sequences" for name in e["args"]}


def test_a_trace_is_bounded():
    tracer = SimulationTracer(max_events=50)
    simulate(make_fleet(), make_workload(), tracer=tracer)
    data = json.loads(tracer.text())
    assert len(data["traceEvents"]) <= 50 + 2
    assert data["otherData"]["events left out"] == tracer.num_left_out > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guessing(0, 0.5),
        lambda: Guessing(3, float("nan")),
        lambda: Guessing(3, 0.5, draft_cost=-1.0),
        lambda: Scaling(3, 2),
        lambda: Scaling(0, 0),
        lambda: Scaling(1, 2, target=float("nan")),
        lambda: Scaling(1, 2, target=2.0, by="utilisation"),
        lambda: Scaling(1, 2, cold_start_s=float("nan")),
        lambda: Disaggregation(0, LINK, 1.0),
        lambda: Disaggregation(1, LINK, float("nan")),
        lambda: apart(prefix_caching=False),
        lambda: apart(scaling=Scaling(1, 2)),
        lambda: make_fleet(max_pending=0),
    ],
)
def test_impossible_wishes_are_refused(make):
    with pytest.raises(ConfigError, match=r"choose|leave"):
        make()
