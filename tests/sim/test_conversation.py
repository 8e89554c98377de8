"""Laws of conversations in virtual time: a turn follows the answer before it, carries its history, and meets the cache."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metrics.timeline import Outcome
from penstock.service.cluster.scaling import Scaling
from penstock.tools.bench.plan import plan_of_recipe
from penstock.tools.cost.hardware import Link
from penstock.tools.sim.handover import Disaggregation
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce, Poisson
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import Conversation, Recipe
from tests.sim.fleets import make_fleet

RECIPE = Recipe(Poisson(20.0), Uniform(5, 80), Uniform(1, 60), num_requests=20, conversation=Conversation(3, 0.5))


def shapes(timelines):
    return sorted((one.num_prompt, one.num_tokens) for one in timelines)


def test_simulator_and_bench_send_the_same_conversations():
    workload, plan = RECIPE.make(7), plan_of_recipe(RECIPE, 7)
    expected = []
    for ask in plan.asks:
        history = 0
        for turn in ask.turns:
            expected.append((history + turn.num_prompt, turn.num_answer))
            history += turn.num_prompt + turn.num_answer
    result = simulate(make_fleet(), workload)
    assert shapes(result.timelines) == sorted(expected)
    assert len(workload) == plan.num_requests == len(result.timelines) == 60
    assert workload.num_prompt_tokens == sum(prompt for prompt, _ in expected)
    assert workload.num_output_tokens == sum(answer for _, answer in expected)
    assert [request.arrival_s for request in workload.requests] == [ask.arrival_s for ask in plan.asks]


@pytest.mark.parametrize("think_s", [0.0, 2.5])
def test_a_turn_comes_so_long_after_the_answer_before_it(think_s):
    recipe = replace(RECIPE, arrivals=AtOnce(), num_requests=1, conversation=Conversation(4, think_s))
    timelines = simulate(make_fleet(), recipe.make(0)).timelines
    assert len(timelines) == 4
    for earlier, later in itertools.pairwise(timelines):
        assert later.arrival_s == pytest.approx(earlier.end_s + think_s)
        assert later.num_prompt > earlier.num_prompt + earlier.num_tokens
        assert later.num_cached >= (earlier.num_prompt + earlier.num_tokens - 1) // 16 * 16


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 100),
    think_s=st.sampled_from([0.0, 0.01, 3.0]),
    num_blocks=st.integers(40, 400),
    num_replicas=st.integers(1, 3),
)
def test_skipping_ahead_changes_nothing(seed, think_s, num_blocks, num_replicas):
    workload = replace(RECIPE, conversation=Conversation(3, think_s)).make(seed)
    fleet = make_fleet(num_blocks=num_blocks, num_replicas=num_replicas)
    fast_forward, stepwise = (simulate(replace(fleet, predicts=on), workload) for on in (True, False))
    assert shapes(fast_forward.timelines) == shapes(stepwise.timelines)
    assert fast_forward.summary.e2e.mean == pytest.approx(stepwise.summary.e2e.mean)
    assert fast_forward.summary.duration_s == pytest.approx(stepwise.summary.duration_s)


def test_a_turn_that_is_refused_is_the_last():
    recipe = replace(RECIPE, prompts=Fixed(100), answers=Fixed(100), num_requests=3)
    timelines = simulate(
        make_fleet(num_blocks=20), recipe.make(0)
    ).timelines  # 320 tokens: the second turn does not fit
    assert sorted(one.outcome for one in timelines) == [Outcome.LENGTH] * 3 + [Outcome.REFUSED] * 3


def test_conversations_go_through_prefill_replicas_and_growing_fleets():
    workload = RECIPE.make(1)
    split = Disaggregation(num_prefill=1, kv_bytes_per_token=1000.0, link=Link("network", 1e9, 1e-5))
    assert len(simulate(make_fleet(split=split), workload).timelines) == 60
    scaling = Scaling(1, 3, target=2.0, cold_start_s=0.1, down_delay_s=0.2, interval_s=0.1)
    result = simulate(make_fleet(scaling=scaling), workload)
    assert len(result.timelines) == 60
    assert {one.outcome for one in result.timelines} == {Outcome.LENGTH}
