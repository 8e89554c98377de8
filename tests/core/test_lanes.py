"""Laws of the batch lane: nobody who is waited for loses anything to it, and it gets all that is left."""

import random

import pytest

from penstock.errors import CapacityError
from penstock.runtime.core.queue.order import ORDERS, Lanes
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import add, output_of, planned
from tests.engine.answers import LIMITS


def make(order: str = "first-come", **limits: int) -> Scheduler:
    return Scheduler(LIMITS._replace(**limits), Lanes(ORDERS[order]()))


def advance(scheduler: Scheduler) -> dict[int, object]:
    """One step; what it computed, by request."""
    batch = scheduler.schedule(0.0)
    if batch is None:
        return {}
    chunks = dict(planned(scheduler, batch))
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler.check()
    return chunks


def test_a_batch_request_stands_still_while_somebody_is_waited_for() -> None:
    scheduler = make(max_sequences=4)
    add(scheduler, 1, num_prompt=4, max_tokens=20, is_batch=True)
    assert set(advance(scheduler)) == {1}
    add(scheduler, 2, num_prompt=4, max_tokens=5)
    while 2 in scheduler._requests:
        assert set(advance(scheduler)) == {2}
    assert set(advance(scheduler)) == {1}


def test_a_batch_request_is_let_in_only_when_nobody_else_is_there() -> None:
    scheduler = make(max_sequences=4)
    add(scheduler, 1, num_prompt=4, max_tokens=3)
    add(scheduler, 2, num_prompt=4, max_tokens=3, is_batch=True)
    while 1 in scheduler._requests:
        assert set(advance(scheduler)) == {1}
    assert set(advance(scheduler)) == {2}


@pytest.mark.parametrize("order", ORDERS)
def test_steps_of_those_who_are_waited_for_are_the_same_beside_a_batch(order: str) -> None:
    """Rows and blocks are found at once, whatever the batch holds."""
    for seed in range(8):
        choose = random.Random(seed)
        sizes = [(choose.randrange(1, 30), choose.randrange(1, 12)) for _ in range(12)]
        seen = []
        for has_batch in (False, True):
            scheduler = make(order, max_sequences=3, num_blocks=24, max_batch_tokens=16, prefix_caching=False)
            if has_batch:
                for number in range(8):
                    add(scheduler, 100 + number, num_prompt=20, max_tokens=30, is_batch=True)
                for _ in range(5):
                    advance(scheduler)
            steps = []
            for number, (num_prompt, max_tokens) in enumerate(sizes):
                add(scheduler, number, num_prompt=num_prompt, max_tokens=max_tokens)
            while any(number in scheduler._requests for number in range(len(sizes))):
                steps.append({name: chunk.length for name, chunk in advance(scheduler).items()})  # type: ignore[attr-defined]
            seen.append(steps)
            while scheduler.has_work:
                advance(scheduler)
            assert scheduler.pool.num_held == 0
        assert seen[0] == seen[1]


def test_any_coming_and_going_keeps_the_books_and_ends() -> None:
    for seed in range(20):
        choose = random.Random(seed)
        scheduler = make(max_sequences=3, num_blocks=20, max_batch_tokens=12)
        for number in range(60):
            if choose.random() < 0.5:
                add(scheduler, number, choose.randrange(1, 20), choose.randrange(1, 15), is_batch=choose.random() < 0.6)
            if choose.random() < 0.1:
                scheduler.cancel(choose.randrange(number + 1))
            advance(scheduler)
        for _ in range(2000):
            if not scheduler.has_work:
                break
            advance(scheduler)
        assert not scheduler.has_work
        assert scheduler.pool.num_held == 0


def test_batch_requests_wait_in_places_of_their_own() -> None:
    scheduler = make(max_waiting=4, max_sequences=1)
    for number in range(2):
        add(scheduler, number, is_batch=True)
    with pytest.raises(CapacityError):
        add(scheduler, 9, is_batch=True)
    for number in range(10, 15):  # four wait, one has a row to go to
        add(scheduler, number)
    assert scheduler.load.num_waiting == 5
    with pytest.raises(CapacityError):
        add(scheduler, 20)


# Steps that are given up halfway


def test_a_step_of_batch_requests_yields_and_is_bounded() -> None:
    scheduler = make(batch_lane_tokens=6, max_batch_tokens=16)
    add(scheduler, 1, num_prompt=12, is_batch=True)
    assert scheduler.schedule(0.0).num_tokens == 6  # type: ignore[union-attr]
    assert scheduler.yields
    add(scheduler, 2, num_prompt=12)
    assert scheduler.schedule(0.0).num_tokens == 12  # type: ignore[union-attr]
    assert not scheduler.yields


def test_an_abandoned_step_is_planned_again_as_it_was() -> None:
    """At every length: also where the step took a block, which is given back."""
    scheduler = make()
    for number in (1, 2):
        add(scheduler, number, num_prompt=3, max_tokens=20, is_batch=True)
    advance(scheduler)
    for _ in range(15):
        num_held = scheduler.pool.num_held
        batch = scheduler.schedule(0.0)
        assert batch is not None
        scheduler.abandon(batch)
        scheduler.check()
        assert scheduler.pool.num_held == num_held
        again = scheduler.schedule(0.0)
        assert again is not None
        assert [chunk._replace(new_blocks=()) for chunk in again.chunks] == [
            chunk._replace(new_blocks=()) for chunk in batch.chunks
        ]
        assert [len(chunk.new_blocks) for chunk in again.chunks] == [len(chunk.new_blocks) for chunk in batch.chunks]
        scheduler.commit(again, output_of(again), 0.0)
    assert not scheduler.flights


def test_an_abandoned_prompt_is_computed_again_and_nobody_trusts_its_blocks() -> None:
    scheduler = make(max_batch_tokens=64)
    add(scheduler, 1, num_prompt=12, is_batch=True)
    batch = scheduler.schedule(0.0)
    assert batch is not None
    scheduler.abandon(batch)
    scheduler.check()
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    again = scheduler.schedule(0.0)
    assert again is not None
    (chunk,) = again.chunks
    assert (chunk.start, chunk.length) == (0, 12)
    assert chunk.arrival is not None


def test_all_prompts_of_an_abandoned_step_are_computed_again() -> None:
    scheduler = make(max_batch_tokens=64)
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=12, is_batch=True)
    batch = scheduler.schedule(0.0)
    assert batch is not None
    assert len(batch.chunks) == 3
    scheduler.abandon(batch)
    scheduler.check()
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 3)
    assert len(scheduler.schedule(0.0).chunks) == 3  # type: ignore[union-attr]


def test_drafts_of_an_abandoned_step_are_not_awaited() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=3, max_tokens=20, is_batch=True)
    advance(scheduler)
    (sequence,) = scheduler.generating
    scheduler.draft(sequence, (5, 6), "test")
    batch = scheduler.schedule(0.0)
    assert batch is not None
    assert batch.chunks[0].num_drafts == 2
    scheduler.abandon(batch)
    scheduler.check()
    again = scheduler.schedule(0.0)
    assert again is not None
    assert (again.chunks[0].start, again.chunks[0].length) == (batch.chunks[0].start, 1)
