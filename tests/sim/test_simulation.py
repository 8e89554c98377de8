"""Laws of fleets: one outcome each, tokens conserved, Little's law, better hardware never slower, batching compared."""

from dataclasses import asdict, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metrics.summary import Slo
from penstock.metrics.timeline import Outcome
from penstock.service.router.policy import POLICIES
from penstock.tools.cost.roofline import Roofline
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce, Gamma, Poisson
from penstock.tools.workload.lengths import Fixed, LogNormal, Uniform
from penstock.tools.workload.workload import SharedPrefix
from tests.sim.fleets import H100, SPEC, make_fleet, make_workload, with_requests

loads = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "num_requests": st.integers(1, 40),
        "arrivals": st.sampled_from([Poisson(5.0), Poisson(500.0), Gamma(50.0, 4.0), AtOnce()]),
    }
)
fleets = st.builds(
    make_fleet,
    batching=st.sampled_from(["continuous", "static", "dynamic"]),
    num_blocks=st.integers(20, 300),
    max_sequences=st.integers(1, 32),
    max_batch_tokens=st.integers(32, 512),
    max_waiting=st.integers(1, 40),
    num_replicas=st.integers(1, 3),
    policy=st.sampled_from([partial(make, 0) for make in POLICIES.values()]),
    depth=st.integers(1, 2),
)


@settings(deadline=None, max_examples=40)
@given(load=loads, fleet=fleets)
def test_every_request_ends_once_and_no_token_is_lost(load, fleet):
    """Whatever the load, the cache and the batching: prompts of up to 300 tokens may not fit and are then refused."""
    workload = make_workload(**load)
    result = simulate(fleet, workload)
    assert len(result.timelines) == len(workload) == result.summary.num_requests
    asked = {request.arrival_s: request for request in workload.requests}
    for timeline in result.timelines:
        request = asked.get(timeline.arrival_s)
        assert timeline.outcome in (Outcome.LENGTH, Outcome.REFUSED)
        if timeline.outcome is Outcome.REFUSED:
            assert timeline.num_tokens == 0
        elif len(asked) == len(workload):
            assert timeline.num_tokens == request.params.max_tokens
            assert timeline.num_prompt == len(request.prompt)
    assert sum(replica.num_requests for replica in result.replicas) == len(workload)
    served = [timeline for timeline in result.timelines if timeline.outcome is Outcome.LENGTH]
    computed = sum(replica.num_computed_tokens for replica in result.replicas)
    needed = sum(one.num_prompt - one.num_cached + one.num_tokens - 1 for one in served)
    assert computed >= needed
    if not result.num_preemptions:
        assert computed == needed


def test_the_same_seed_gives_the_same_result():
    fleet = make_fleet(num_replicas=3, num_blocks=200)
    first, second = (simulate(fleet, make_workload(4, num_requests=100)) for _ in range(2))
    assert first.summary == second.summary
    assert first.replicas == second.replicas


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_littles_law(batching):
    """Requests inside, on average, are those arriving a second times the seconds each stays."""
    workload = make_workload(1, num_requests=400, rate=15.0)
    result = simulate(make_fleet(batching, max_sequences=64), workload)
    (replica,) = result.replicas
    duration_s = result.summary.duration_s
    mean_stay_s = sum(one.end_s - one.arrival_s for one in result.timelines) / len(workload)
    inside = replica.mean_running + replica.mean_waiting
    assert inside == pytest.approx(len(workload) / duration_s * mean_stay_s, rel=0.05)


def test_batching_strategies_in_the_order_of_their_invention():
    workload = make_workload(
        0, num_requests=200, rate=40.0, prompts=Uniform(20, 200), answers=LogNormal(100, 1.2, 1, 2000)
    )
    rates, waits = {}, {}
    for batching in ("static", "dynamic", "continuous"):
        summary = simulate(make_fleet(batching, max_sequences=32), workload, Slo(ttft_s=0.5, tpot_s=0.05)).summary
        rates[batching] = summary.output_tokens_per_s
        waits[batching] = summary.ttft.p50
    assert rates["static"] <= rates["dynamic"] * 1.02
    assert rates["dynamic"] * 2 < rates["continuous"]
    assert waits["continuous"] < waits["dynamic"] / 5


def on_scaled_hardware(workload, **fleet):
    """Results on the hardware as it is, with twice the bandwidth, with twice the compute, and with both."""
    return [
        simulate(make_fleet(cost=Roofline(SPEC, H100.achievable.scaled(compute, bandwidth)), **fleet), workload)
        for compute, bandwidth in ((1, 1), (1, 2), (2, 1), (2, 2))
    ]


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_doubling_bandwidth_or_compute_delays_nobody_when_all_come_at_once(batching):
    """Then batches do not depend on durations, so every request can be compared with itself."""
    workload = make_workload(3, arrivals=AtOnce(), num_requests=80)
    base, bandwidth, compute, both = on_scaled_hardware(workload, batching=batching, max_sequences=24)
    for faster, slower in ((bandwidth, base), (compute, base), (both, bandwidth), (both, compute)):
        for one, other in zip(faster.timelines, slower.timelines, strict=True):
            assert one.first_token_s <= other.first_token_s
            assert one.last_token_s <= other.last_token_s


@pytest.mark.parametrize("seed", range(3))
def test_doubling_bandwidth_or_compute_never_slows_by_more_than_a_missed_step(seed):
    """Who arrives just after a step began waits for it; which request that is, depends on durations."""
    base, bandwidth, compute, both = on_scaled_hardware(make_workload(seed, num_requests=80, rate=30.0))
    step_s = 0.03
    for faster, slower in ((bandwidth, base), (compute, base), (both, bandwidth), (both, compute)):
        assert faster.summary.e2e.mean <= slower.summary.e2e.mean + step_s
        assert faster.summary.duration_s <= slower.summary.duration_s + step_s
    assert both.summary.e2e.mean < base.summary.e2e.mean * 0.8


def test_more_replicas_shorten_the_wait_and_share_the_work():
    workload = make_workload(2, num_requests=200, rate=60.0)
    one, four = (simulate(make_fleet(num_replicas=count, max_sequences=16), workload) for count in (1, 4))
    assert four.summary.ttft.p95 < one.summary.ttft.p95
    shares = [replica.num_requests for replica in four.replicas]
    assert min(shares) > 30
    assert all(0.0 < replica.busy_fraction <= 1.0 for replica in four.replicas)


def test_a_lone_request_takes_what_its_steps_cost():
    fleet = make_fleet()
    workload = make_workload(num_requests=1, prompts=Fixed(100), answers=Fixed(10))
    result = simulate(fleet, workload)
    (timeline,) = result.timelines
    assert result.num_steps == 10
    assert timeline.e2e_s == pytest.approx(result.replicas[0].busy_fraction * result.summary.duration_s)
    assert 5e-3 < timeline.tpot_s < 7e-3


def test_shared_prefixes_are_computed_once():
    workload = make_workload(num_requests=50, rate=10.0, prompts=Fixed(32), prefix=SharedPrefix(512))
    with_cache, without = (simulate(make_fleet(prefix_caching=caching), workload) for caching in (True, False))
    assert with_cache.summary.num_cached_tokens >= 49 * 512
    assert without.summary.num_cached_tokens == 0
    assert with_cache.replicas[0].num_computed_tokens < without.replicas[0].num_computed_tokens - 48 * 512
    assert with_cache.summary.ttft.p50 < without.summary.ttft.p50


def test_shared_prefixes_are_computed_once_though_all_come_at_once():
    workload = make_workload(num_requests=50, arrivals=AtOnce(), prompts=Fixed(32), prefix=SharedPrefix(512))
    result = simulate(make_fleet(), workload)
    assert result.summary.num_cached_tokens == 49 * 512


def test_a_cache_too_small_for_all_preempts_and_still_serves():
    workload = make_workload(num_requests=60, arrivals=AtOnce(), prompts=Fixed(64), answers=Fixed(200))
    result = simulate(make_fleet(num_blocks=120, max_sequences=32), workload)
    assert result.num_preemptions > 0
    assert result.summary.outcomes["length"] == 60
    assert result.replicas[0].max_kv_usage_fraction > 0.95


def test_deadlines_end_requests_that_come_too_late():
    workload = with_requests(
        make_workload(num_requests=40, arrivals=AtOnce(), answers=Fixed(100)),
        lambda request: replace(request, deadline_s=1.5),
    )
    result = simulate(make_fleet(max_sequences=4), workload)
    outcomes = result.summary.outcomes
    assert outcomes["deadline"] > 0
    assert outcomes["length"] > 0
    assert all(one.end_s <= 1.52 for one in result.timelines)


def test_an_empty_workload_is_an_empty_result():
    result = simulate(make_fleet(), replace(make_workload(), requests=()))
    assert result.summary.duration_s == result.num_steps == 0


def test_reports_are_plain_data():
    result = simulate(make_fleet(), make_workload(num_requests=5))
    assert asdict(result.replicas[0])["num_requests"] == 5
