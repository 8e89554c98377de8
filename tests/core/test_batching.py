"""When waiting sequences may join: at once, in whole batches, or in batches gathered for a moment."""

import pytest

from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC, Batching, dynamic
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import output_of, planned, running, step
from tests.engine.answers import LIMITS, make_request


def make_scheduler(batching: Batching, **limits) -> Scheduler:
    return Scheduler(LIMITS._replace(**{"max_sequences": 2, **limits}), batching=batching)


def add(scheduler, request_id, now=0.0, num_prompt=3, max_tokens=3, **options):
    prompt = range(10 * request_id, 10 * request_id + num_prompt)
    scheduler.add(make_request(request_id, prompt, max_tokens=max_tokens, **options), now)


def inside(scheduler):
    return {request_id for request_id, _ in running(scheduler)}


def test_a_full_batch_opens_at_once_and_others_after_a_moment():
    batching = dynamic(0.5)
    assert batching.opens_s(3.0, is_full=True) == 3.0
    assert batching.opens_s(3.0, is_full=False) == 3.5
    for at_once in (CONTINUOUS, STATIC):
        assert at_once.opens_s(3.0, is_full=False) == 3.0
    assert CONTINUOUS.joins
    assert not STATIC.joins
    assert not batching.joins


def test_continuous_admits_whenever_there_is_room():
    scheduler = make_scheduler(CONTINUOUS)
    for number in (1, 2, 3):
        add(scheduler, number, max_tokens=number + 1)
    step(scheduler)
    assert inside(scheduler) == {1, 2}
    step(scheduler)
    assert inside(scheduler) == {2}
    batch, _ = step(scheduler)
    assert len(batch.chunks) == 2
    assert inside(scheduler) == {3}


@pytest.mark.parametrize("batching", [STATIC, dynamic(0.5)])
def test_nobody_joins_a_whole_batch_until_its_last_has_ended(batching):
    scheduler = make_scheduler(batching)
    for number, max_tokens in ((1, 2), (2, 6), (3, 1), (4, 3), (5, 2)):
        add(scheduler, number, max_tokens=max_tokens)
    batches = []
    while scheduler.has_work:
        batch = scheduler.schedule(100.0)
        batches.append(set(planned(scheduler, batch)))
        scheduler.commit(batch, output_of(batch), 100.0)
        scheduler.check()
    assert batches == [{1, 2}, {1, 2}, {2}, {2}, {2}, {2}, {3, 4}, {4}, {4}, {5}, {5}]


def test_a_whole_batch_computes_all_prompts_before_it_generates():
    scheduler = make_scheduler(STATIC, max_batch_tokens=4)
    add(scheduler, 1, num_prompt=3)
    add(scheduler, 2, num_prompt=6)
    lengths = []
    for _ in range(4):
        batch = scheduler.schedule(0.0)
        lengths.append({request_id: chunk.length for request_id, chunk in planned(scheduler, batch).items()})
        scheduler.commit(batch, output_of(batch), 0.0)
    assert lengths == [{1: 3, 2: 1}, {2: 4}, {2: 1}, {1: 1, 2: 1}]


def test_a_whole_batch_admits_more_than_one_step_computes():
    """All that fit in rows and blocks make the batch, even if the budget is spent on the first of them."""
    scheduler = make_scheduler(STATIC, max_batch_tokens=3, max_sequences=3)
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=3)
    batch, _ = step(scheduler)
    assert len(batch.chunks) == 1
    assert inside(scheduler) == {1, 2, 3}


def test_a_whole_batch_reserves_its_full_length():
    """It cannot pause anyone, so whoever is let in has room to the end."""
    scheduler = make_scheduler(STATIC, num_blocks=5, block_size=4)
    add(scheduler, 1, num_prompt=3, max_tokens=6)
    add(scheduler, 2, num_prompt=3, max_tokens=10)
    step(scheduler)
    assert inside(scheduler) == {1, 2}
    assert [len(one.blocks) for one in running(scheduler).values()] == [2, 3]
    assert scheduler.pool.num_available == 0
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.num_preemptions == 0
    add(scheduler, 3, num_prompt=3, max_tokens=7)
    add(scheduler, 4, num_prompt=3, max_tokens=10)
    step(scheduler)
    assert inside(scheduler) == {3}


def test_choices_of_a_whole_batch_are_sequences_of_their_own():
    scheduler = make_scheduler(STATIC)
    add(scheduler, 1, n=2)
    assert scheduler.load.num_waiting == 2
    batch, _ = step(scheduler)
    assert len(batch.chunks) == 2


def test_an_idle_engine_gathers_a_batch_but_not_for_ever():
    scheduler = make_scheduler(dynamic(0.5), max_sequences=3)
    assert scheduler.wake_s is None
    add(scheduler, 1, now=10.0)
    assert scheduler.wake_s == 10.5
    assert scheduler.schedule(10.0) is None
    add(scheduler, 2, now=10.4)
    assert scheduler.wake_s == 10.5, "the moment is the first one's"
    assert scheduler.schedule(10.499) is None
    batch, _ = step(scheduler, 10.5)
    assert len(batch.chunks) == 2
    assert scheduler.wake_s is None


def test_a_full_batch_does_not_wait():
    scheduler = make_scheduler(dynamic(0.5), max_sequences=2)
    add(scheduler, 1, now=10.0)
    add(scheduler, 2, now=10.1)
    assert scheduler.wake_s == 10.0
    batch, _ = step(scheduler, 10.1)
    assert len(batch.chunks) == 2


def test_whoever_gave_up_does_not_fill_a_batch():
    scheduler = make_scheduler(dynamic(0.5), max_sequences=2)
    add(scheduler, 1, now=10.0)
    add(scheduler, 2, now=10.1)
    scheduler.cancel(2)
    assert scheduler.schedule(10.2) is None
    scheduler.cancel(1)
    assert scheduler.wake_s is None
    add(scheduler, 3, now=20.0)
    assert scheduler.wake_s == 20.5


def test_those_left_over_are_not_gathered_for_again():
    scheduler = make_scheduler(dynamic(0.5), max_sequences=1)
    add(scheduler, 1, now=10.0, max_tokens=1)
    add(scheduler, 2, now=10.0, max_tokens=1)
    step(scheduler, 10.0)
    assert scheduler.wake_s == 10.0
    batch, _ = step(scheduler, 10.1)
    assert len(batch.chunks) == 1


def test_there_is_nothing_to_wake_for_while_a_batch_runs():
    scheduler = make_scheduler(dynamic(0.5), max_sequences=2)
    add(scheduler, 1, now=10.0)
    add(scheduler, 2, now=10.0)
    step(scheduler, 10.0)
    add(scheduler, 3, now=11.0)
    assert scheduler.wake_s is None


@pytest.mark.parametrize("batching", [CONTINUOUS, STATIC, dynamic(0.5)])
def test_there_is_nothing_to_wake_for_when_all_is_done(batching):
    scheduler = make_scheduler(batching)
    add(scheduler, 1, now=10.0, max_tokens=1)
    assert scheduler.wake_s is not None
    step(scheduler, 11.0)
    assert not scheduler.has_work
    assert scheduler.wake_s is None


def test_the_next_deadline_is_something_to_wake_for():
    scheduler = make_scheduler(dynamic(0.5))
    add(scheduler, 1, now=10.0, deadline_s=12.0)
    assert scheduler.wake_s == 10.5
    add(scheduler, 2, now=10.0, deadline_s=10.2)
    assert scheduler.wake_s == 10.0
    step(scheduler, 10.0)
    assert scheduler.wake_s == 10.2
    assert {delta.request_id for delta in scheduler.expire(10.2)} == {2}
    assert scheduler.wake_s == 12.0
