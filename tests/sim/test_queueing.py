"""Laws of a run as a queue: Little's law, capacity as it is met, and "unstable" where the queue grows to the end."""

from dataclasses import replace

import pytest

from penstock.metrics.timeline import Outcome, Timeline
from penstock.service.router.policy import POLICIES
from penstock.tools.sim.queueing import capacity_per_s, queue_figures, stability_of
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import Poisson
from penstock.tools.workload.lengths import Fixed
from penstock.tools.workload.workload import Conversation, People, Recipe, SharedPrefix
from tests.sim.fleets import make_fleet


def fleet(max_sequences=4, policy=None, **rest):
    made = make_fleet(**rest)
    scheduler = replace(made.config.scheduler, max_sequences=max_sequences)
    made = replace(made, config=replace(made.config, scheduler=scheduler))
    return made if policy is None else replace(made, policy=lambda: POLICIES[policy](0))


RECIPE = Recipe(Poisson(1.0), Fixed(20), Fixed(10), num_requests=400)


def at(rate, **changes):
    return replace(RECIPE, arrivals=Poisson(rate), **changes).make(0)


@pytest.fixture(scope="module")
def capacity():
    return capacity_per_s(fleet(max_sequences=4), at(1.0))


def figures(rate, **changes):
    made, workload = fleet(max_sequences=4, **changes), at(rate)
    return queue_figures(made, workload, simulate(made, workload))


def test_inside_is_rate_times_time(capacity):
    for share in (0.2, 0.8, 1.5):
        found = figures(share * capacity)
        assert found.inside == pytest.approx(found.ended_per_s * found.time_s)
        assert found.rho == pytest.approx(share, rel=0.15)


def test_below_capacity_the_queue_rests_and_above_it_grows(capacity):
    assert figures(0.6 * capacity).stability.is_stable
    found = figures(1.5 * capacity).stability
    assert not found.is_stable
    assert found.waiting_last > found.waiting_before


def test_copies_carry_in_proportion(capacity):
    assert capacity_per_s(fleet(max_sequences=4, num_replicas=3), at(1.0)) == pytest.approx(3 * capacity)


def test_what_was_refused_at_the_end_is_not_at_rest():
    def ended(arrival_s, outcome=Outcome.STOP):
        one = Timeline(arrival_s, 1)
        one.first_token_s = one.last_token_s = one.end_s = arrival_s + 0.1
        one.outcome = outcome
        return one

    calm = [ended(float(number)) for number in range(40)]
    assert stability_of(calm).is_stable
    assert not stability_of([*calm, ended(39.5, Outcome.REFUSED)]).is_stable
    assert stability_of([]).is_stable


def test_users_ask_again_when_they_have_thought():
    workload = RECIPE.of_users(10, 5.0, seed=0)
    assert len(workload) == 400
    assert len(workload.requests) == 10
    result = simulate(fleet(max_sequences=4), workload)
    assert result.summary.num_successes == 400
    # N = X (R + Z), but for the first who come within Z and the last who no longer ask
    response_s = result.summary.e2e.mean
    assert 400 / result.summary.duration_s * (response_s + 5.0) == pytest.approx(10, rel=0.1)


def test_a_users_next_question_begins_anew_and_turns_keep_their_history():
    recipe = replace(RECIPE, num_requests=6, conversation=Conversation(2, 1.0))
    workload = recipe.of_users(2, 1.0, seed=0)
    assert len(workload) == 12
    for request in workload.requests:
        turns = workload.later[request.request_id]
        assert [turn.keeps_history for turn in turns] == [True, False, True, False, True]
    assert workload.num_prompt_tokens == 6 * (20 + 20 + 10 + 20)


def test_a_fair_order_spares_the_tenant_that_asks_little():
    def slowest(order):
        made = fleet(max_sequences=4, order=order)
        workload = at(1.5 * capacity_per_s(made, at(1.0)), people=People(tenants=(95.0, 5.0)))
        ended = simulate(made, workload).timelines
        return max(one.ttft_s for one in ended if one.group == "tenant 2")

    assert slowest("fair") < slowest("first-come") / 3


def test_a_priority_goes_first():
    def slowest(order):
        made = fleet(max_sequences=4, order=order)
        workload = at(1.5 * capacity_per_s(made, at(1.0)), people=People(urgent_fraction=0.1))
        return max(one.ttft_s for one in simulate(made, workload).timelines if one.group == "priority 1")

    assert slowest("priority") < slowest("first-come") / 3


def test_a_session_stays_where_its_prefix_lies():
    def cached(policy):
        people = People(num_sessions=12)
        workload = at(4.0, people=people, prefix=SharedPrefix(160, 12), prompts=Fixed(8))
        made = fleet(max_sequences=8, num_replicas=4, policy=policy, num_blocks=64)
        return simulate(made, workload).summary.num_cached_tokens

    assert cached("session") > 1.2 * cached("round-robin")
