"""Laws of the batch lane: nobody who is waited for loses anything to it, and it gets all that is left."""

import random

import pytest

from penstock.core.lanes import Lanes
from penstock.core.order import ORDERS
from penstock.core.scheduler import Scheduler
from penstock.errors import CapacityError
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
