"""Sequences that go ahead by themselves, batches committed in parts, and prompts whose KV came from elsewhere."""

import pytest

from penstock.runtime.core.batch import FinishReason, StepOutput
from penstock.runtime.core.request import Request, SamplingParams
from tests.core.steps import add, make_scheduler, running


def commit(scheduler, batch, drawn, fast_forward=0):
    output = StepOutput(tuple((9,) * drawn if chunk.samples else () for chunk in batch.chunks))
    return scheduler.commit(batch, output, 0.0, (fast_forward,) * len(batch.chunks))


def start(fast_forward, max_tokens=20, **limits):
    scheduler = make_scheduler(**limits)
    add(scheduler, 1, num_prompt=3, max_tokens=max_tokens)
    commit(scheduler, scheduler.schedule(0.0), 1, fast_forward)
    return scheduler


def test_a_sequence_goes_ahead_as_far_as_it_may_and_no_further_than_its_end():
    for fast_forward, max_tokens, length in ((4, 20, 5), (4, 4, 3), (4, 2, 1), (0, 20, 1)):
        (chunk,) = start(fast_forward, max_tokens).schedule(0.0).chunks
        assert (chunk.start, chunk.length, chunk.num_fast_forward) == (3, length, length - 1)
        assert (chunk.num_drafts, chunk.token_ids) == (0, ())


@pytest.mark.parametrize("drawn", [1, 3, 5])
def test_one_that_comes_back_early_goes_on_where_it_was(drawn):
    scheduler = start(4, block_size=2)
    batch = scheduler.schedule(0.0)
    commit(scheduler, batch, drawn)
    sequence = running(scheduler)[1, 0]
    assert len(sequence.tokens) == 4 + drawn
    assert sequence.num_computed == 3 + drawn
    scheduler.check()
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length) == (3 + drawn, 1)


def test_who_is_away_is_not_planned_but_takes_one_token_of_every_step():
    scheduler = start(4, max_batch_tokens=8, max_sequences=4)
    scheduler.schedule(0.0)
    add(scheduler, 2, num_prompt=12)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.length == 7
    scheduler = start(0, max_batch_tokens=8, max_sequences=4)
    add(scheduler, 2, num_prompt=12)
    decode, chunk = scheduler.schedule(0.0).chunks
    assert (decode.length, chunk.length) == (1, 7), "as if it had been planned with the others"


def test_a_split_batch_is_committed_in_any_order_and_ends_each_alone():
    scheduler = make_scheduler()
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=3, max_tokens=3)
    commit(scheduler, scheduler.schedule(0.0), 1, 1)
    parts = scheduler.flights.split(scheduler.schedule(0.0))
    assert [part.chunks[0].length for part in parts] == [2, 2, 2]
    for part in reversed(parts):
        (delta,) = commit(scheduler, part, 2)
        assert delta.finish.reason is FinishReason.LENGTH
        scheduler.check()
    assert not scheduler.has_work
    assert not scheduler.flights


def test_what_was_adopted_need_not_be_computed():
    prompt = tuple(range(10, 21))
    request = Request(request_id=1, prompt=prompt, params=SamplingParams(max_tokens=2))
    scheduler = make_scheduler(block_size=4, num_blocks=8)
    assert scheduler.adopt(request) == 8
    scheduler.check()
    scheduler.add(request, 0.0)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length) == (8, 3)


def test_nothing_is_adopted_where_there_is_no_room_or_no_cache():
    request = Request(request_id=1, prompt=tuple(range(1, 60)), params=SamplingParams(max_tokens=2))
    assert make_scheduler(block_size=4, num_blocks=8).adopt(request) == 0
    assert make_scheduler(block_size=4, num_blocks=32, prefix_caching=False).adopt(request) == 0
