"""Laws of the swift replica beyond those of `test_replica`: layouts, windows, company of every kind, and truth about blocks."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models import catalog
from penstock.service.router.policy import POLICIES
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.roofline import Overhead, Roofline, roofline
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import Gamma
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import SharedPrefix
from tests.sim.fleets import COST, H100, SPEC, make_fleet, make_workload
from tests.sim.test_replica import assert_equal, assert_predicting_changes_nothing

COSTS = {
    "windows": Roofline(catalog.find("gemma-3-4b"), H100.achievable),
    "tensor": roofline(SPEC, H100, layout=Layout(4)),
    "pipeline": roofline(SPEC, H100, layout=Layout(2, 2)),
    "overlap": Roofline(SPEC, H100.achievable, overhead=Overhead(overlaps=True)),
}


@pytest.mark.parametrize("name", COSTS)
def test_every_cost_gives_the_times_of_single_steps(name):
    assert_predicting_changes_nothing(make_fleet(cost=COSTS[name]), make_workload(9, num_requests=30))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_sees_what_it_would_see_step_by_step(policy):
    fleet = make_fleet(num_replicas=3, max_sequences=16, policy=partial(POLICIES[policy], 1))
    workload = make_workload(10, arrivals=Gamma(60.0, 2.0), prefix=SharedPrefix(64, 4, 0.7))
    assert_predicting_changes_nothing(fleet, workload)


def test_a_saturated_replica_is_told_exactly():
    """More want in than there are rows: whoever ends makes room for the next at that very step."""
    workload = make_workload(11, num_requests=80, rate=300.0, prompts=Uniform(5, 900))
    fleet = make_fleet(max_sequences=12, max_batch_tokens=256)
    predicted = simulate(fleet, workload, keep_times=True)
    assert_equal(predicted, simulate(replace(fleet, predicts=False), workload, keep_times=True))
    assert predicted.replicas[0].waiting_for_rows_fraction > 0.5


def test_steps_that_follow_what_they_cost_are_told_exactly_and_hold_answers_up_less():
    fleet = make_fleet(max_batch_tokens=4096)
    mixed = replace(fleet, sizing=replace(fleet.sizing, is_mixed=True))
    workload = make_workload(12, num_requests=150, rate=25.0, prompts=Uniform(100, 1000), answers=Uniform(50, 250))
    assert_predicting_changes_nothing(mixed, workload)
    slowest = [max(one.tpot_s or 0.0 for one in simulate(each, workload).timelines) for each in (fleet, mixed)]
    assert slowest[1] < slowest[0]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 99), num_blocks=st.integers(40, 120))
def test_a_cache_too_small_for_all_is_told_exactly(seed, num_blocks):
    """Runs end where blocks do, so that none is taken before its time, and all are cut before somebody is pushed out."""
    workload = make_workload(seed, num_requests=25, rate=200.0, answers=Uniform(2, 120))
    fleet = make_fleet(num_blocks=num_blocks, max_sequences=16, max_batch_tokens=128)
    predicted, stepwise = (simulate(replace(fleet, predicts=on), workload) for on in (True, False))
    assert [one.end_s for one in predicted.timelines] == [one.end_s for one in stepwise.timelines]
    assert predicted.num_preemptions == stepwise.num_preemptions


def test_the_cache_is_not_counted_full_before_its_time():
    workload = make_workload(2, num_requests=40, rate=10.0, prompts=Fixed(160), answers=Fixed(800))
    predicted, stepwise = (simulate(make_fleet(predicts=on), workload).replicas[0] for on in (True, False))
    assert predicted.mean_kv_usage_fraction == pytest.approx(stepwise.mean_kv_usage_fraction, rel=0.08)
    assert predicted.max_kv_usage_fraction == pytest.approx(stepwise.max_kv_usage_fraction, rel=0.1)


@given(
    lengths=st.lists(st.integers(1, 5000), max_size=8),
    prompts=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300), st.booleans()), max_size=3),
    num_steps=st.integers(1, 5),
)
def test_sums_of_lengths_cost_what_the_sequences_do(lengths, prompts, num_steps):
    singles = tuple(Chunk(0, length - 1, 1, (), (), True, None) for length in lengths)
    chunks = tuple(Chunk(0, start, length, (), (), samples, None) for start, length, samples in prompts)
    if singles or chunks:
        assert COST.sum_s(len(singles), sum(lengths), chunks) == COST.step_s(Batch(0, singles + chunks))
    if singles:
        assert COST.sums_s(len(singles), sum(lengths), num_steps) == COST.run_s(Batch(0, singles), num_steps)
