"""Laws of the measured cost: a run is its steps, a fitted cost tells what it was fitted to, and knows where it does not."""

import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.core.features import StepTime, features_of
from penstock.tools.cost.cost import moved
from penstock.tools.cost.measured.fit import CostRamp
from penstock.tools.cost.measured.fitting import fit_steps, slowdowns_along
from penstock.tools.cost.measured.ramps import Fitted, MeasuredCost
from penstock.tools.cost.measured.slowdown import Slowdown
from penstock.tools.cost.measured.warmth import Cooling, Warmth
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce, Constant
from penstock.tools.workload.lengths import Fixed
from penstock.tools.workload.workload import SharedPrefix
from tests.sim.fleets import COST, make_fleet, make_workload
from tests.sim.test_replica import assert_predicting_changes_nothing

CHUNKS = st.builds(
    lambda start, length, samples: Chunk(0, start, length, (), (), samples, None),
    st.integers(0, 3000),
    st.one_of(st.just(1), st.just(1), st.integers(2, 400)),
    st.booleans(),
)
BATCHES = st.lists(CHUNKS, min_size=1, max_size=10).map(lambda chunks: Batch(1, tuple(chunks)))


def batch_of(random):
    """Some sequences that generate, some prompts."""
    singles = [(random.randrange(1, 2000), 1) for _ in range(random.choice((0, 1, 2, 4, 8, 16, 32)))]
    longer = [(random.choice((0, 256)), random.randrange(2, 500)) for _ in range(random.choice((0, 0, 1, 3)))]
    pairs = singles + longer or [(7, 1)]
    return Batch(1, tuple(Chunk(0, start, length, (), (), True, None) for start, length in pairs))


COOLING = Cooling(0.02, 0.7)


def cold_s(batch):
    """What a batch takes longer with cold caches."""
    return 0.003 + 1e-6 * features_of(batch).single_kv  # nothing is shared


def steps_of(seed, count, noise=0.02, host_s=2e-4):
    """A step log of an engine whose steps take as long as the roofline says, more or less, and now and then far longer; of one
    whose caches cool."""
    random, warmth = Random(seed), Warmth(COOLING)
    steps, now = [], 0.0
    for number in range(count):
        batch = batch_of(random)
        factor = random.gauss(1.0, noise) * (5.0 if random.random() < 0.03 else 1.0)
        host = host_s + 1e-5 * len(batch.chunks)
        rest_s = random.choice((0.0, 0.0, 0.0, 0.0, 0.05))
        now += rest_s
        (device_s,) = warmth.predict(now, [COST.step_s(batch) * abs(factor)], [cold_s(batch)])
        warmth.take(1)
        now += device_s
        steps.append(StepTime(float(number), device_s, host, True, rest_s, features_of(batch)))
    return steps


FITTED = fit_steps(steps_of(1, 500), overlaps=False)


@given(BATCHES, st.integers(1, 40), st.booleans())
def test_a_run_is_its_steps_to_the_last_bit(batch, num_steps, overlaps):
    cost = MeasuredCost(replace(FITTED, overlaps=overlaps))
    assert cost.run_s(batch, num_steps) == [cost.step_s(moved(batch, number)) for number in range(num_steps)]


def test_it_tells_the_time_of_steps_it_has_not_seen():
    cost, random = MeasuredCost(FITTED), Random(2)
    off = []
    for _ in range(300):
        batch = batch_of(random)
        host_s = 2e-4 + 1e-5 * len(batch.chunks)
        off.append(abs(cost.step_s(batch) / (COST.step_s(batch) + host_s) - 1.0))
    off.sort()
    assert off[150] < 0.03
    assert off[285] < 0.10


def test_its_own_word_on_its_error_is_true():
    errors = FITTED.errors["all"]
    assert errors.median < 0.05
    assert -0.15 < errors.bias < 0.01, "three steps in a hundred were disturbed and took five times as long"
    blind = fit_steps(steps_of(1, 1500, noise=0.3), overlaps=False)
    assert blind.errors["all"].median > 3 * errors.median
    assert set(FITTED.errors) == {"all", "decode", "prompt", "mixed", "cold", "host"}


def test_the_host_adds_up_or_is_hidden():
    batch = batch_of(Random(3))
    plain, overlapped = (MeasuredCost(replace(FITTED, overlaps=each)).step_s(batch) for each in (False, True))
    device_only = MeasuredCost(replace(FITTED, host=())).step_s(batch)
    host_only = MeasuredCost(replace(FITTED, device=())).step_s(batch)
    assert plain == pytest.approx(device_only + host_only)
    assert overlapped == max(device_only, host_only)
    assert host_only == pytest.approx(2e-4 + 1e-5 * len(batch.chunks), rel=0.05)


def test_what_is_told_of_many_steps_adds_up_to_what_they_took():
    random, steps, batches = Random(8), [], []
    for number in range(2000):
        batches.append(batch_of(random))
        device_s = COST.step_s(batches[-1]) * (1.8 if random.random() < 0.2 else 1.0)
        steps.append(StepTime(float(number), device_s, 2e-4, True, 0.0, features_of(batches[-1])))
    cost = MeasuredCost(replace(fit_steps(steps, overlaps=False), host=()))
    reported_s, warmth = 0.0, Warmth(cost.cooling)
    for batch in batches:
        reported_s += warmth.predict(reported_s, cost.run_s(batch, 1), cost.cold_s(batch, 1))[0]
        warmth.take(1)
    assert reported_s == pytest.approx(sum(step.device_s for step in steps), rel=0.02)


def test_steps_that_took_longer_are_slow_spells_by_as_much():
    steps = steps_of(3, 1500)
    slow = [step._replace(device_s=1.3 * step.device_s) for step in steps]
    usual, slower = (median(slowdown.factor for slowdown in slowdowns_along(FITTED, each)) for each in (steps, slow))
    assert usual == pytest.approx(1.0, abs=0.05)
    assert slower == pytest.approx(1.3, abs=0.08)


def test_what_several_sequences_read_is_told_as_much_cheaper_as_it_was():
    random, steps = Random(11), []

    def seconds(batch):
        features = features_of(batch)
        return 0.004 + 1e-7 * features.single_kv + 4e-7 * max(features.single_kv - features.shared_kv, 0)

    def like(num_sequences, num_shared, num_own):
        chunks = tuple(Chunk(row, num_shared + num_own, 1, (), (), True, None) for row in range(num_sequences))
        return Batch(1, chunks, (), num_shared * (num_sequences - 1))

    for number in range(800):
        batch = like(random.randrange(1, 17), random.choice((0, 0, 400, 1600)), random.randrange(1, 500))
        device_s = seconds(batch) * random.gauss(1.0, 0.01)
        steps.append(StepTime(float(number), device_s, 2e-4, True, 0.0, features_of(batch)))
    cost = MeasuredCost(replace(fit_steps(steps, overlaps=False), host=()))
    alike, apart = like(8, 1000, 100), like(8, 0, 1100)
    assert cost.step_s(alike) == pytest.approx(seconds(alike), rel=0.05)
    assert cost.step_s(apart) == pytest.approx(seconds(apart), rel=0.05)


def test_the_simulator_knows_who_shares():
    """Requests that begin alike generate faster together than others of the same lengths."""
    ramps = (CostRamp("rows", 0.0, 1.0, 0.004), CostRamp("own_kv", 0.0, math.inf, 1e-6))
    fitted = Fitted(ramps, (), False, FITTED.most, 100, {})
    alike = make_workload(4, arrivals=AtOnce(), num_requests=16, prompts=Fixed(20), prefix=SharedPrefix(512))
    apart = make_workload(4, arrivals=AtOnce(), num_requests=16, prompts=Fixed(532))
    tpot = [simulate(make_fleet(cost=MeasuredCost(fitted)), each).summary.tpot.p50 for each in (alike, apart)]
    assert tpot[0] < 0.7 * tpot[1]


def test_a_machine_with_slow_moments_has_longer_worst_waits_and_the_same_work():
    workload = make_workload(4, num_requests=400, rate=5.0)
    usual = replace(FITTED, slowdowns=(), cooling=None)
    even, time_varying = (
        simulate(make_fleet(cost=MeasuredCost(replace(usual, slowdowns=slowdowns))), workload).summary
        for slowdowns in ((), (Slowdown(0.9, 0.9), Slowdown(0.3, 1.5)))
    )
    assert time_varying.tpot.p95 > 1.1 * even.tpot.p95
    assert time_varying.tpot.p50 < even.tpot.p50, "most of the time it is faster than on average"
    assert time_varying.tpot.mean == pytest.approx(even.tpot.mean, rel=0.1)


def test_a_step_takes_as_much_longer_with_cold_caches_as_was_measured():
    cost, random = MeasuredCost(FITTED), Random(5)
    assert cost.cooling == COOLING
    batches = [batch_of(random) for _ in range(50)]
    off = sorted(abs(cost.cold_s(batch, 1)[0] / cold_s(batch) - 1.0) for batch in batches)
    assert off[25] < 0.15


def test_caches_that_make_no_difference_are_not_spoken_of():
    random, steps = Random(6), []
    for number in range(600):
        batch = batch_of(random)
        device_s = COST.step_s(batch) * random.gauss(1.0, 0.01)
        steps.append(StepTime(float(number), device_s, 2e-4, True, 0.0, features_of(batch)))
    cost, cold = MeasuredCost(fit_steps(steps, overlaps=False)), [0.0]
    if cost.cooling is not None:
        cold = [cost.cold_s(batch_of(random), 1)[0] / COST.step_s(batch_of(random)) for _ in range(50)]
    assert sorted(cold)[len(cold) // 2] < 0.05


def test_the_simulator_is_slower_after_a_rest_and_warms_up():
    apart = make_workload(4, num_requests=12, arrivals=Constant(0.2))
    even = replace(FITTED, slowdowns=())
    cost = MeasuredCost(even)
    rested = simulate(make_fleet(cost=cost), apart)
    warm = simulate(make_fleet(cost=MeasuredCost(replace(even, cooling=None))), apart)
    for one, other, request in zip(rested.timelines, warm.timelines, apart.requests):
        batch = Batch(1, (Chunk(0, 0, len(request.prompt), request.prompt, (), True, None),))
        assert one.ttft_s == pytest.approx(other.ttft_s + cost.cold_s(batch, 1)[0], rel=1e-6)
        assert one.e2e_s - one.ttft_s > other.e2e_s - other.ttft_s, "the steps after it are not warm at once"


@given(BATCHES)
def test_more_work_never_takes_less_time(batch):
    cost = MeasuredCost(FITTED)
    more = batch._replace(chunks=(*batch.chunks, Chunk(0, 99, 1, (), (), True, None)))
    assert cost.step_s(more) >= cost.step_s(batch)
    assert cost.step_s(moved(batch, 50)) >= cost.step_s(batch)


def test_it_knows_where_it_was_not_measured():
    cost = MeasuredCost(FITTED)
    near = Batch(1, (Chunk(0, 100, 1, (), (), True, None),))
    far = Batch(1, (Chunk(0, 999_999, 1, (), (), True, None),))
    assert cost.outside(features_of(near)) == ()
    assert cost.outside(features_of(far)) == ("single_kv", "max_kv")
    cost.run_s(near, 10)
    assert (cost.num_asked, cost.num_outside, cost.furthest) == (10, 0, {})
    cost.step_s(far)
    assert (cost.num_asked, cost.num_outside) == (11, 1)
    assert cost.furthest == {"single_kv": 1_000_000, "max_kv": 1_000_000}
    cost.run_s(near, 5_000)
    assert cost.num_outside > 1, "a run that leaves the range is outside"


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_the_simulator_may_foretell_with_it(seed):
    for rate in (2.0, 40.0):
        assert_predicting_changes_nothing(make_fleet(cost=MeasuredCost(FITTED)), make_workload(seed, rate=rate))


def test_too_few_steps_are_refused():
    with pytest.raises(ConfigError, match="49 steps"):
        fit_steps(steps_of(1, 49), overlaps=False)
