"""A workload through a live engine: everybody is served, at the time they came and not before."""

import time

from penstock.config import configure
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.scripted import ScriptedRunner
from penstock.runtime.sizing import make_scheduler
from penstock.tools.measure.live import Disturbance, serve_live
from penstock.tools.workload.arrivals import Constant
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import Conversation, Recipe
from tests.sim.fleets import make_fleet

WORKLOAD = Recipe(Constant(200.0), Uniform(4, 40), Fixed(6), 40, vocab_size=50).make(3)


def make_engine(**settings):
    fleet = make_fleet()
    config = configure(fleet.config, **settings)
    return Engine(make_scheduler(config, fleet.sizing), ScriptedRunner(), time.monotonic)


def test_everybody_is_served_at_their_time():
    served = serve_live(make_engine(), WORKLOAD)
    assert [timeline.num_tokens for timeline in served.timelines.ended] == [6] * 40
    assert not served.timelines.num_open
    assert all(timeline.ttft_s > 0.0 for timeline in served.timelines.ended)
    assert served.duration_s >= WORKLOAD.requests[-1].arrival_s
    assert set(served.taken_s) == {request.request_id for request in WORKLOAD.requests}
    first_s = WORKLOAD.requests[0].arrival_s
    for request in WORKLOAD.requests:
        assert served.taken_s[request.request_id] >= request.arrival_s - first_s - 0.05


def test_a_workload_that_stands_still_does_not_notice():
    spent = []

    def between():
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + 0.004:
            pass
        spent.append(time.monotonic() - begin_s)

    begin_s = time.monotonic()
    served = serve_live(make_engine(), WORKLOAD, between)
    elapsed_s = time.monotonic() - begin_s
    assert len(served.timelines.ended) == 40
    assert len(served.pauses) == len(spent) > 0
    assert sum(seconds for _, seconds in served.pauses) >= sum(spent)
    assert WORKLOAD.requests[-1].arrival_s <= served.duration_s <= elapsed_s - sum(spent)
    counts = [num_steps for num_steps, _ in served.pauses]
    assert counts == sorted(counts)


def test_a_batch_that_gathers_is_waited_for():
    served = serve_live(make_engine(batching="dynamic", max_sequences=64, gather_s=0.02), WORKLOAD)
    assert len(served.timelines.ended) == 40


def test_disturbance_is_a_share_of_the_machine():
    disturbance = Disturbance()
    total = 0
    while disturbance.fraction is None:
        total += sum(range(1000))
    assert 0.0 <= disturbance.fraction <= 1.0


def test_a_next_turn_comes_after_the_answer_before_it_and_brings_all_of_it_along():
    recipe = Recipe(Constant(100.0), Fixed(8), Fixed(5), 6, vocab_size=50, conversation=Conversation(3, think_s=0.02))
    workload = recipe.make(1)
    served = serve_live(make_engine(), workload)
    ended = served.timelines.ended
    assert len(ended) == len(workload) == 18
    assert sorted(one.num_prompt for one in ended) == [8] * 6 + [8 + 5 + 8] * 6 + [8 + 5 + 8 + 5 + 8] * 6
    firsts = {request.arrival_s for request in workload.requests}
    last_first_s = min(one.arrival_s + one.e2e_s for one in ended)
    assert all(one.arrival_s >= last_first_s + 0.02 for one in ended if one.arrival_s not in firsts)
