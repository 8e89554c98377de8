"""Laws of capacity: looser targets, faster devices and shorter requests never carry less, and the bound holds."""

from dataclasses import replace

import pytest

from penstock.metrics.summary import Slo
from penstock.tools.cost.hardware import find
from penstock.tools.planner.capacity import Loads, find_capacity, grid_rate, serve
from penstock.tools.planner.demand import SloTarget
from penstock.tools.planner.steady import bound, num_inside, steady_batch
from penstock.tools.planner.warm import warm_start
from penstock.tools.workload.workload import Conversation
from tests.planner.candidates import TARGET, make_candidate, make_demand


def capacity(candidate, demand, target=TARGET, finest=4):
    return find_capacity(Loads(candidate, demand, target, lambda: None), finest)


def faster(device, factor):
    return replace(device, peak=device.peak.scaled(factor, factor))


DEMAND = make_demand()


def test_it_is_the_last_rate_that_holds():
    found = capacity(make_candidate(), DEMAND, finest=1)
    assert found.at is not None
    assert found.at.rate == found.rate
    assert found.at.good_fraction >= TARGET.fraction
    assert found.beyond is None or found.beyond.good_fraction < TARGET.fraction
    assert found.beyond is None or found.beyond.rate == pytest.approx(found.rate * grid_rate(1))


def test_looser_targets_never_carry_less():
    candidate = make_candidate(max_sequences=8)
    targets = [SloTarget(Slo(ttft_s=ttft, tpot_s=tpot)) for ttft, tpot in ((0.03, 0.003), (0.1, 0.006), (1.0, 0.05))]
    rates = [capacity(candidate, DEMAND, target).rate for target in targets]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0]


def test_a_larger_share_of_good_requests_never_carries_more():
    candidate = make_candidate(max_sequences=8)
    slo = Slo(ttft_s=0.05, tpot_s=0.01)
    rates = [capacity(candidate, DEMAND, SloTarget(slo, fraction)).rate for fraction in (0.99, 0.9)]
    assert rates == sorted(rates)


def test_faster_devices_never_carry_less():
    rates = [capacity(make_candidate(device=faster(find("l4"), factor)), DEMAND).rate for factor in (0.5, 1.0, 2.0)]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0]


def test_shorter_prompts_never_carry_less():
    long, short = (capacity(make_candidate(), make_demand(prompts=span)).rate for span in ((500, 900), (50, 250)))
    assert short >= long


def test_what_no_load_can_meet_is_zero():
    found = capacity(make_candidate(), DEMAND, SloTarget(Slo(ttft_s=1e-6)))
    assert (found.rate, found.at) == (0.0, None)
    assert found.beyond is not None
    assert capacity(make_candidate(), DEMAND, SloTarget(Slo(tpot_s=1e-6))).rate == 0.0


def test_nothing_is_tried_far_above_the_bound():
    candidate = make_candidate(max_sequences=4)
    found = capacity(candidate, DEMAND, SloTarget(Slo(ttft_s=60.0, tpot_s=1.0)))
    most = bound(candidate, DEMAND.sizes, Slo(tpot_s=1.0)).rate
    assert 0.8 * most < found.rate <= 1.02 * most


def test_the_bound_is_little_law():
    """Those inside = rate x the time each stays."""
    candidate = make_candidate(max_sequences=12)
    steady = bound(candidate, DEMAND.sizes, Slo())
    assert steady.num_sequences == 12
    assert steady.rate * DEMAND.sizes.mean_answer * steady.step_s == pytest.approx(12)
    assert num_inside(candidate, DEMAND.sizes, steady.rate) == 12
    batch = steady_batch(12, DEMAND.sizes)
    expected = 12 * (1 + DEMAND.sizes.mean_prompt / DEMAND.sizes.mean_answer)
    assert batch.num_tokens == pytest.approx(expected, rel=0.02)


def test_prompts_beyond_the_budget_are_bound_by_their_steps():
    demand = make_demand(prompts=(4000, 4000), answers=(2, 2))
    candidate = make_candidate(max_batch_tokens=512)
    found = bound(candidate, demand.sizes, Slo())
    assert 0.0 < found.rate < 512 / 4000 / found.step_s * 1.01


def test_a_warm_start_holds_those_who_would_be_inside():
    candidate = make_candidate(max_sequences=32)
    workload = DEMAND.workload(200.0, 50, 1000)
    warm = warm_start(candidate, DEMAND, workload, 200.0, 1)
    before = [request for request in warm.workload.requests if request.arrival_s == 0.0]
    assert len(before) == num_inside(candidate, DEMAND.sizes, 200.0)
    assert all(1 <= (request.params.max_tokens or 0) <= 24 for request in before)
    after = warm.workload.requests[len(before) :]
    gaps = {round(late.arrival_s - plain.arrival_s, 9) for late, plain in zip(after, workload.requests, strict=True)}
    assert gaps == {round(warm.start_s, 9)}


def test_a_long_run_agrees_with_a_warm_one():
    """Answers of one length: the steady state of arithmetic, and of a run that starts warm, have the same TPOT."""
    demand = make_demand(prompts=(100, 100), answers=(200, 200))
    candidate = make_candidate(max_sequences=64, max_batch_tokens=2048)
    steady = bound(candidate, demand.sizes, Slo())
    run = serve(candidate, demand, SloTarget(Slo()), 0.7 * steady.rate, 1)
    inside = num_inside(candidate, demand.sizes, 0.7 * steady.rate)
    expected = candidate.step_cost.step_s(steady_batch(inside, demand.sizes))
    assert run.summary.tpot.mean == pytest.approx(expected, rel=0.1)


def test_conversations_are_turns_at_the_rate_of_requests_with_their_histories():
    plain = make_demand(rate=20.0, prompts=(50, 50), answers=(10, 10))
    talk = replace(plain, conversation=Conversation(4, 1.0))
    workload = talk.workload(20.0, 400, 1000)
    assert len(workload) == 400
    assert len(workload.requests) == 100
    assert len(workload.requests) / workload.span_s == pytest.approx(5.0, rel=0.3)
    assert talk.sizes.mean_prompt == pytest.approx(50 + 60 * 1.5)
    assert talk.mean_repeated == pytest.approx(60 * 1.5)
    assert (plain.mean_repeated, plain.sizes.mean_prompt) == (0, 50)


def test_histories_in_the_cache_cost_less_than_prompts_of_that_length():
    candidate = make_candidate()
    talk = replace(make_demand(prompts=(50, 50), answers=(10, 10)), conversation=Conversation(4, 0.1))
    cold = make_demand(prompts=(140, 140), answers=(10, 10))
    rates = [
        find_capacity(Loads(candidate, demand, TARGET, lambda: None)).rate
        for demand in (talk, cold, make_demand(prompts=(50, 50), answers=(10, 10)))
    ]
    assert rates[1] < rates[0] <= rates[2]


def test_a_run_of_conversations_is_judged_at_the_rate_it_was_asked_for():
    candidate = make_candidate()
    talk = replace(make_demand(prompts=(50, 50), answers=(10, 10)), conversation=Conversation(4, 5.0))
    run = serve(candidate, talk, TARGET, 40.0, 1)
    assert run.summary.num_requests / run.summary.duration_s == pytest.approx(40.0, rel=0.15)
