"""Who is pushed out for want of blocks, and how they come back."""

from collections import deque
from random import Random

import pytest

from penstock.runtime.core.plan import StepPlan
from penstock.runtime.core.queue.order import ORDERS
from tests.core.steps import add, fill, finish, inside, make_scheduler, output_of, planned, planned_now, running, step


def test_the_last_to_come_is_pushed_out_first():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {})
    batch = scheduler.schedule(0.0)
    assert set(planned(scheduler, batch)) == {1, 2}
    assert inside(scheduler) == {1, 2}
    assert scheduler.num_preemptions == scheduler.load.num_preemptions == 1
    scheduler.check()


def test_whoever_needs_a_block_and_is_last_leaves_itself():
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    add(scheduler, 1, num_prompt=5, max_tokens=4)
    add(scheduler, 2, num_prompt=3, max_tokens=4)
    step(scheduler)
    assert inside(scheduler) == {1}, "one block is spare"
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=5, max_tokens=6)
    add(scheduler, 2, num_prompt=4, max_tokens=6)
    step(scheduler)
    assert inside(scheduler) == {1, 2}
    step(scheduler)
    step(scheduler)
    assert scheduler.num_preemptions == 0
    while scheduler.num_preemptions == 0:
        step(scheduler)
    assert inside(scheduler) == {1}
    assert [delta.request_id for delta in finish(scheduler) if delta.finish] == [1, 2]


def victims(scheduler, needy):
    """Who would leave for whom, one after the other, until the needy one leaves itself."""
    gone = []
    while not gone or gone[-1] != needy:
        plan = StepPlan(scheduler.limits, scheduler.pool, scheduler.roster)
        victim = plan.victim(running(scheduler)[needy, 0])
        gone.append(victim.request.request_id)
        scheduler.roster.leave(victim)
    return gone


def test_the_least_important_is_pushed_out_first():
    scheduler = make_scheduler("priority")
    fill(scheduler, {"priority": 2}, {"priority": 0}, {"priority": 1}, {"priority": 3})
    assert victims(scheduler, 1) == [2, 3, 1]


def test_under_fairness_the_tenant_served_most_is_pushed_out_first():
    scheduler = make_scheduler("fair")
    fill(scheduler, {"tenant": "a"}, {"tenant": "b"}, {"tenant": "c"}, {"tenant": "d"})
    scheduler.roster.order.charge(running(scheduler)[3, 0], 100)
    scheduler.roster.order.charge(running(scheduler)[1, 0], 200)
    assert victims(scheduler, 1) == [3, 4, 2, 1]


def test_of_equals_the_cheapest_to_compute_again_is_pushed_out_first():
    scheduler = make_scheduler()
    fill(scheduler, {"num_prompt": 1}, {"num_prompt": 5}, {"num_prompt": 9}, {"num_prompt": 5}, {"num_prompt": 7})
    assert victims(scheduler, 2) == [4, 5, 3, 2]


@pytest.mark.parametrize("order", ORDERS)
def test_whoever_generates_and_stays_has_a_place_in_every_step(order):
    """Whoever else is pushed out, before or after it, and however far ahead steps are planned."""
    num_preemptions = 0
    for seed in range(25):
        choose = Random(seed)
        scheduler = make_scheduler(order, num_blocks=choose.choice((6, 9)), block_size=2, max_batch_tokens=8)
        flying = deque()
        for number in range(40):
            if number < 12:
                add(
                    scheduler,
                    number,
                    choose.randrange(1, 6),
                    6,
                    priority=choose.randrange(3),
                    tenant=choose.choice("ab"),
                )
            ready = {one: one.epoch for one in scheduler.roster.running if may_generate(one)}
            batch = scheduler.schedule(0.0)
            placed = set(scheduler.flights.sequences(batch)) if batch else set()
            assert placed >= {one for one, epoch in ready.items() if one.is_inside_since(epoch)}
            if batch:
                flying.append(batch)
            if len(flying) > choose.randrange(3):
                batch = flying.popleft()
                drafts = tuple((1,) * choose.randrange(3) for _ in batch.chunks)
                scheduler.commit(batch, output_of(batch, drafts=drafts), 0.0)
            scheduler.check()
        num_preemptions += scheduler.num_preemptions
    assert num_preemptions > 20


def may_generate(one):
    return one.holds_next and not one.num_verifying and len(one.tokens) + one.num_pending < one.limit


def test_the_first_is_never_pushed_out():
    scheduler = make_scheduler("priority", num_blocks=6, block_size=2, max_sequences=4)
    add(scheduler, 1, num_prompt=3, max_tokens=8, priority=1)
    for number in range(2, 8):
        add(scheduler, number, num_prompt=3, max_tokens=8)
    step(scheduler)
    while 1 in inside(scheduler):
        assert 1 in planned_now(scheduler)
    assert scheduler.num_preemptions > 0


def test_what_was_planned_for_one_pushed_out_is_withdrawn():
    """Its place in the step's budget goes to others."""
    scheduler = make_scheduler("priority", num_blocks=8, block_size=4, max_batch_tokens=12)
    add(scheduler, 1, num_prompt=4, max_tokens=20, priority=0)
    step(scheduler)
    add(scheduler, 2, num_prompt=4, max_tokens=20, priority=9)
    step(scheduler)
    while not scheduler.num_preemptions:
        batch = scheduler.schedule(0.0)
        rows = [chunk.row for chunk in batch.chunks]
        assert len(set(rows)) == len(rows)
        assert len(batch.chunks) == len(scheduler.flights.sequences(batch))
        scheduler.commit(batch, output_of(batch), 0.0)
        scheduler.check()
    assert 2 in inside(scheduler)
    assert set(planned(scheduler, scheduler.schedule(0.0))) >= {2}


def test_one_pushed_out_starts_from_what_is_still_cached():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {})
    step(scheduler)
    assert inside(scheduler) == {1, 2}
    scheduler.cancel(1)
    batch = scheduler.schedule(0.0)
    chunk = planned(scheduler, batch)[3]
    assert chunk.start == 4
    assert chunk.arrival is not None
    assert chunk.token_ids == (7,)
    assert chunk.samples


def test_what_was_computed_for_one_who_left_is_nobodys():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {})
    running(scheduler)[3, 0]
    late = scheduler.schedule(0.0)
    scheduler.cancel(2)
    assert scheduler.flights.live(late) == (0,)
    deltas = scheduler.commit(late, output_of(late), 0.0)
    assert [delta.request_id for delta in deltas] == [1]
    assert not scheduler.flights
