"""Guesses are verified many at a time; what was guessed wrong leaves no trace."""

import pytest

from penstock.runtime.core.batch import Drafted, Finish, FinishReason, Logprob, StepOutput
from penstock.runtime.core.queue.batching import STATIC
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import add, fill, finish, make_scheduler, output_of, planned, running, step
from tests.engine.answers import LIMITS


def draw_with_drafts(batch, drawn, drafts):
    return StepOutput(
        tuple(drawn if chunk.samples else () for chunk in batch.chunks),
        drafts=tuple(drafts if chunk.samples else () for chunk in batch.chunks),
    )


def start_drafting(max_tokens=20, drafts=(1, 2, 3), **limits):
    scheduler = make_scheduler(**limits)
    add(scheduler, 1, num_prompt=3, max_tokens=max_tokens)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), drafts), 0.0)
    return scheduler


def test_drafts_are_verified_in_one_chunk():
    scheduler = start_drafting()
    batch = scheduler.schedule(0.0)
    (chunk,) = batch.chunks
    assert (chunk.start, chunk.length, chunk.token_ids, chunk.num_drafts, chunk.samples) == (3, 4, (1, 2, 3), 3, True)
    assert scheduler.schedule(0.0) is None, "its length is unknown until its drafts are judged"
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4)), 0.0)
    assert delta.token_ids == (1, 2, 3, 4)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length, chunk.num_drafts) == (7, 1, 0), "used once"


@pytest.mark.parametrize("num_drawn", [1, 2, 3, 4])
def test_rejected_drafts_are_computed_again(num_drawn):
    scheduler = start_drafting(block_size=2)
    batch = scheduler.schedule(0.0)
    drawn = (1, 2, 3, 4)[:num_drawn]
    scheduler.commit(batch, output_of(batch, lambda chunk: drawn), 0.0)
    sequence = running(scheduler)[1, 0]
    assert sequence.tokens[3:] == [9, *drawn]
    assert sequence.num_computed == 3 + num_drawn
    assert sequence.holding.num_published == (3 + num_drawn) // 2
    scheduler.check()
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length) == (3 + num_drawn, 1)


@pytest.mark.parametrize("num_drawn", [1, 2, 3, 4])
def test_how_many_drafts_came_true_is_told(num_drawn):
    scheduler = start_drafting()
    batch = scheduler.schedule(0.0)
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4)[:num_drawn]), 0.0)
    assert delta.drafts == (Drafted(3, num_drawn - 1, ""),)


@pytest.mark.parametrize(("max_tokens", "num_drafts"), [(2, 0), (3, 1), (4, 2), (5, 3), (6, 3)])
def test_drafts_stop_where_the_answer_must_end(max_tokens, num_drafts):
    scheduler = start_drafting(max_tokens=max_tokens)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.num_drafts == num_drafts
    assert chunk.end <= 3 + max_tokens - 1


def test_drafts_leave_everybody_a_place():
    scheduler = make_scheduler(max_batch_tokens=9, max_sequences=4)
    for number in range(1, 5):
        add(scheduler, number, num_prompt=2)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3)), 0.0)
    batch = scheduler.schedule(0.0)
    assert [chunk.num_drafts for chunk in batch.chunks] == [3, 2, 0, 0]
    assert batch.num_tokens == 9


def test_others_go_on_while_drafts_are_judged():
    scheduler = make_scheduler()
    add(scheduler, 1)
    add(scheduler, 2)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, output_of(batch, drafts=((1, 2), ())), 0.0)
    first = scheduler.schedule(0.0)
    assert [chunk.num_drafts for chunk in first.chunks] == [2, 0]
    assert list(planned(scheduler, scheduler.schedule(0.0))) == [2]


def test_leaving_while_drafts_are_judged():
    scheduler = start_drafting()
    batch = scheduler.schedule(0.0)
    (delta,) = scheduler.cancel(1)
    assert delta.token_ids == ()
    assert scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2)), 0.0) == ()
    scheduler.check()


def test_guesses_about_what_is_already_being_drawn_are_dropped():
    scheduler = make_scheduler()
    add(scheduler, 1)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    scheduler.commit(first, draw_with_drafts(first, (9,), (1, 2)), 0.0)
    third = scheduler.schedule(0.0)
    assert third.chunks[0].num_drafts == 0
    scheduler.commit(second, draw_with_drafts(second, (9,), (1, 2)), 0.0)
    scheduler.commit(third, draw_with_drafts(third, (9,), (1, 2)), 0.0)
    assert scheduler.schedule(0.0).chunks[0].num_drafts == 2


def test_an_end_among_the_drafts_cuts_what_follows():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=3, stop_token_ids=(2,), logprobs=0)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3)), 0.0)
    batch = scheduler.schedule(0.0)
    logprobs = tuple(Logprob(token, -1.0, ()) for token in (1, 2, 3, 4))
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4), logprobs=(logprobs,)), 0.0)
    assert delta.token_ids == (1, 2)
    assert delta.logprobs == logprobs[:2]
    assert delta.finish == Finish(FinishReason.STOP, stop_token_id=2)
    assert delta.drafts == (Drafted(3, 2, ""),), "the third came true and is not told"
    assert not scheduler.has_work
    scheduler.check()


def test_only_what_an_ended_sequence_holds_is_published():
    """Drafts computed past its end are no content."""
    scheduler = make_scheduler(block_size=2)
    add(scheduler, 1, num_prompt=3, stop_token_ids=(1,))
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3)), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4)), 0.0)
    assert scheduler.pool.num_cached == 2  # 1000 1001 | 1002 9 | and the stop token is not computed
    scheduler.check()


def test_drafts_of_one_pushed_out_are_forgotten():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {})
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1,) * 3), 0.0)
    while not scheduler.num_preemptions:
        batch = scheduler.schedule(0.0)
        scheduler.commit(batch, draw_with_drafts(batch, (9,), (1,) * 9), 0.0)
        scheduler.check()
    assert [delta.request_id for delta in finish(scheduler) if delta.finish] == [1, 2]


def test_a_whole_batch_can_have_drafts_too():
    scheduler = Scheduler(LIMITS._replace(num_blocks=4, block_size=4), batching=STATIC)
    add(scheduler, 1, num_prompt=3, max_tokens=6)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3, 4, 5, 6)), 0.0)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.num_drafts == 4
    assert chunk.new_blocks == ()


def test_tokens_that_must_come_next_are_verified_in_the_next_step():
    scheduler = make_scheduler()
    add(scheduler, 1)
    step(scheduler)
    assert scheduler.propose(1, 0, (4, 5, 6), "grammar") == 3
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.drafts == (4, 5, 6)
    assert scheduler.propose(1, 0, (4, 5, 6), "grammar") == 0, "its length is unknown until its drafts are judged"


def test_of_tokens_that_must_come_next_those_of_steps_in_flight_are_drawn_there():
    scheduler = make_scheduler()
    add(scheduler, 1)
    prompt = scheduler.schedule(0.0)
    scheduler.commit(prompt, output_of(prompt), 0.0)
    in_flight = scheduler.schedule(0.0)
    assert scheduler.propose(1, 0, (4, 5, 6), "grammar") == 2
    assert scheduler.schedule(0.0).chunks[0].drafts == (5, 6)
    scheduler.commit(in_flight, output_of(in_flight, lambda chunk: (4,)), 0.0)
    assert running(scheduler)[1, 0].tokens[-1] == 4


def test_who_has_no_step_verifies_nothing():
    scheduler = make_scheduler(max_sequences=1)
    add(scheduler, 1)
    add(scheduler, 2)
    step(scheduler)
    assert [scheduler.propose(number, 0, (4, 5), "grammar") for number in (2, 3)] == [0, 0], "it waits; nobody knows it"
    assert scheduler.propose(1, 1, (4, 5), "grammar") == 0, "it has no such choice"


def test_beside_a_prompt_in_progress_nothing_is_drawn_yet():
    scheduler = make_scheduler(max_batch_tokens=4)
    add(scheduler, 1, num_prompt=10)
    step(scheduler)
    assert scheduler.propose(1, 0, (4, 5, 6), "grammar") == 3
