"""Choices of a request share its prompt and end on their own; so do cancelled and late ones."""

import pytest

from penstock.runtime.core.batch import Delta, Fault, Finish, FinishReason
from tests.core.steps import add, finish, inside, make_scheduler, output_of, running, step


def test_choices_share_the_prompt_of_the_first():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=10, n=3)
    assert scheduler.load.num_waiting == 1
    batch, _ = step(scheduler)
    assert batch.num_tokens == 10
    assert scheduler.load.num_waiting == 2
    batch, deltas = step(scheduler)
    assert [chunk.length for chunk in batch.chunks] == [1, 1, 1]
    first, *others = (running(scheduler)[1, choice] for choice in range(3))
    assert batch.copies == tuple((first.blocks[2], other.blocks[2]) for other in others)
    for other, chunk in zip(others, batch.chunks[1:]):
        assert other.blocks[:2] == first.blocks[:2]
        assert chunk.start == 9
        assert chunk.new_blocks == tuple(other.blocks)
        assert chunk.arrival.choice == other.choice
    assert [delta.prefix and delta.prefix[:2] for delta in deltas] == [None, (9, ""), (9, "")]


def test_a_prompt_that_ends_with_a_block_needs_no_copy():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=9, n=2)
    step(scheduler)
    batch, _ = step(scheduler)
    assert batch.copies == ()
    assert batch.chunks[1].start == 8


def test_choices_wait_for_the_first_through_all_pieces_of_its_prompt():
    scheduler = make_scheduler(max_batch_tokens=4, max_sequences=4)
    add(scheduler, 1, num_prompt=10, n=2)
    for _ in range(2):
        step(scheduler)
        assert scheduler.load.num_waiting == 0
    step(scheduler)
    assert scheduler.load.num_waiting == 1


def test_choices_go_on_when_the_first_ends_with_its_first_token():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=10, n=3, max_tokens=1)
    deltas = finish(scheduler)
    assert [(delta.choice, delta.token_ids, delta.finish.reason) for delta in deltas] == [
        (choice, (7,), "length") for choice in range(3)
    ]
    assert deltas[1].prefix[:2] == (8, ""), "what the first computed is cached"


def test_choices_go_on_when_the_first_fails():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=10, n=2, max_tokens=2)
    batch = scheduler.schedule(0.0)
    (failed,) = scheduler.commit(batch, output_of(batch, failures=((0, "no good"),)), 0.0)
    assert failed.choice == 0
    assert [(delta.choice, delta.finish is not None) for delta in finish(scheduler)] == [(1, False), (1, True)]


def test_a_choice_whose_turn_comes_late_starts_on_its_own():
    """When the first has been pushed out, what it published is matched instead."""
    scheduler = make_scheduler("priority", num_blocks=6, block_size=4, max_sequences=3)
    add(scheduler, 1, num_prompt=9, max_tokens=4, n=2)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler.roster.preempt(running(scheduler)[1, 0])
    batch, _ = step(scheduler)
    assert batch.copies == ()
    assert [(chunk.start, chunk.arrival.choice) for chunk in batch.chunks] == [(8, 0), (8, 1)]


@pytest.mark.parametrize("how", ["commit", "expire", "schedule"])
def test_choices_wait_from_the_time_last_told(how):
    scheduler = make_scheduler()
    add(scheduler, 1, n=2, max_tokens=1)
    batch = scheduler.schedule(3.0)
    if how == "commit":
        scheduler.commit(batch, output_of(batch), 5.0)
    elif how == "expire":
        scheduler.expire(5.0)
        scheduler.cancel(1, 0)
    else:
        scheduler.schedule(5.0)
        scheduler.cancel(1, 0)
    assert scheduler.wake_s == 5.0


# Cancelling and deadlines


def test_cancelling_says_so_once():
    scheduler = make_scheduler()
    add(scheduler, 1)
    assert scheduler.cancel(1) == (Delta(1, 0, (), Finish(FinishReason.CANCELLED)),)
    assert scheduler.cancel(1) == ()
    assert scheduler.cancel(99) == ()
    assert not scheduler.has_work


def test_a_deadline_ends_every_choice_that_is_left():
    scheduler = make_scheduler()
    add(scheduler, 1, n=3, deadline_s=5.0)
    add(scheduler, 2, deadline_s=6.0)
    add(scheduler, 3)
    step(scheduler)
    assert scheduler.expire(4.999) == ()
    deltas = scheduler.expire(5.0)
    assert [(delta.request_id, delta.choice) for delta in deltas] == [(1, 0), (1, 1), (1, 2)]
    assert {delta.finish.fault for delta in deltas} == {Fault.DEADLINE}
    assert "the deadline passed before the answer was complete" in deltas[0].finish.message
    assert scheduler.expire(5.5) == ()
    assert [delta.request_id for delta in scheduler.expire(100.0)] == [2]
    assert inside(scheduler) == {3}
    scheduler.check()


def test_several_deadlines_pass_in_order():
    scheduler = make_scheduler()
    for number, deadline_s in ((1, 9.0), (2, 3.0), (3, 7.0), (4, 20.0)):
        add(scheduler, number, deadline_s=deadline_s)
    scheduler.cancel(3)
    assert [delta.request_id for delta in scheduler.expire(10.0)] == [2, 1]
    assert scheduler.wake_s == 0.0
    step(scheduler)
    assert scheduler.wake_s == 20.0


def test_choices_that_do_not_even_wait_yet_end_with_their_request():
    scheduler = make_scheduler()
    add(scheduler, 1, n=3)
    assert scheduler.num_waiting == 1, "the others wait for the prompt they share"
    deltas = scheduler.cancel(1)
    assert [delta.choice for delta in deltas] == [0, 1, 2]
    assert {delta.finish for delta in deltas} == {Finish(FinishReason.CANCELLED)}
    assert not scheduler.has_work
    scheduler.check()
