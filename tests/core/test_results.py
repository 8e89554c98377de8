"""What is told of a step: tokens, ends, prefixes and log probabilities, each once."""

import pytest

from penstock.runtime.core.batch import NO_TOKEN_LEFT, Fault, Finish, FinishReason, Logprob
from tests.core.steps import add, fill, finish, inside, make_scheduler, output_of, running, step
from tests.engine.answers import make_request


def test_a_chunk_that_failed_ends_its_sequence_alone():
    scheduler = make_scheduler()
    for number in (1, 2, 3):
        add(scheduler, number)
    batch = scheduler.schedule(0.0)
    deltas = scheduler.commit(batch, output_of(batch, failures=((1, "no good"),)), 0.0)
    assert [delta.request_id for delta in deltas] == [1, 2, 3]
    assert deltas[1].finish == Finish(FinishReason.ERROR, "no good", Fault.ENGINE)
    assert deltas[1].token_ids == ()
    assert deltas[0].finish is deltas[2].finish is None
    assert inside(scheduler) == {1, 3}
    scheduler.check()


def test_a_request_that_leaves_itself_no_token_is_at_fault_itself():
    scheduler = make_scheduler()
    add(scheduler, 1)
    batch = scheduler.schedule(0.0)
    (delta,) = scheduler.commit(batch, output_of(batch, failures=((0, NO_TOKEN_LEFT),)), 0.0)
    assert delta.finish == Finish(FinishReason.ERROR, NO_TOKEN_LEFT, Fault.REQUEST)


def test_a_chunk_that_drew_nothing_ends_its_sequence():
    scheduler = make_scheduler()
    add(scheduler, 1)
    batch = scheduler.schedule(0.0)
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: ()), 0.0)
    assert delta.finish == Finish(FinishReason.ERROR, "the model drew no token", Fault.ENGINE)
    assert not scheduler.has_work


def test_the_middle_of_a_prompt_tells_nothing():
    scheduler = make_scheduler(max_batch_tokens=4, max_sequences=4)
    add(scheduler, 1, num_prompt=9)
    assert [len(step(scheduler)[1]) for _ in range(4)] == [0, 0, 1, 1]


def test_a_sequence_that_goes_on_counts_what_is_computed_and_offers_it_at_once():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=3, max_tokens=12)
    for num_computed in range(3, 14):
        step(scheduler)
        sequence = running(scheduler)[1, 0]
        assert sequence.num_computed == num_computed == len(sequence.tokens) - 1
        assert scheduler.pool.num_cached == num_computed // scheduler.limits.block_size


@pytest.mark.parametrize(("min_tokens", "num_tokens"), [(0, 1), (1, 2), (3, 4)])
def test_stop_tokens_count_after_the_least_length(min_tokens, num_tokens):
    scheduler = make_scheduler()
    add(scheduler, 1, stop_token_ids=(7,), min_tokens=min_tokens)
    deltas = finish(scheduler)
    assert len(deltas) == num_tokens
    assert deltas[-1].finish == Finish(FinishReason.STOP, stop_token_id=7)


def test_stop_tokens_may_be_ignored():
    scheduler = make_scheduler()
    add(scheduler, 1, stop_token_ids=(7,), ignore_eos=True, max_tokens=5)
    deltas = finish(scheduler)
    assert len(deltas) == 5
    assert deltas[-1].finish == Finish(FinishReason.LENGTH)


def test_a_stop_token_at_the_limit_is_a_stop():
    scheduler = make_scheduler()
    add(scheduler, 1, stop_token_ids=(7,), max_tokens=1)
    assert finish(scheduler)[-1].finish.reason == FinishReason.STOP


def test_no_limit_is_the_context():
    scheduler = make_scheduler(max_context=20)
    add(scheduler, 1, num_prompt=3, max_tokens=None)
    assert len(finish(scheduler)) == 17
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    add(scheduler, 1, num_prompt=3, max_tokens=None)
    assert len(finish(scheduler)) == 10, "12 positions hold 13 tokens: the last drawn needs no place"


# Prefixes


def test_the_prefix_is_told_with_the_first_tokens():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=2)
    first, second = finish(scheduler)
    assert first.prefix[:2] == (0, "nothing cached begins alike")
    assert second.prefix is None
    scheduler.add(make_request(2, range(1000, 1009), max_tokens=1), 0.0)
    batch, (delta,) = step(scheduler)
    assert delta.prefix[:2] == (8, "")
    assert batch.num_tokens == 1


def test_it_is_told_when_a_sequence_was_admitted():
    scheduler = make_scheduler(max_sequences=2)
    scheduler.add(make_request(1, (1, 2), max_tokens=2, n=2), 1.0)
    _, (first,) = step(scheduler, 4.0)
    _, (_, second) = step(scheduler, 6.0)
    assert first.prefix.admitted_s == 4.0
    assert second.prefix.admitted_s == 6.0


def test_a_shared_prefix_is_computed_once():
    scheduler = make_scheduler(num_blocks=64, block_size=16, max_context=1000, max_batch_tokens=1000)
    shared = tuple(range(512))
    scheduler.add(make_request(1, (*shared, 901), max_tokens=1), 0.0)
    batch, _ = step(scheduler)
    assert batch.num_tokens == 513
    scheduler.add(make_request(2, (*shared, *range(700, 740)), max_tokens=1), 0.0)
    batch, (delta,) = step(scheduler)
    assert batch.num_tokens == 40
    assert delta.prefix[:2] == (512, "differs from every cached prompt")


def test_a_prefix_is_reported_as_first_found_not_as_found_after_being_pushed_out():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {"max_tokens": 3})
    deltas = finish(scheduler)
    assert scheduler.num_preemptions
    assert all(delta.prefix is None for delta in deltas)


def test_caching_can_be_switched_off():
    scheduler = make_scheduler(prefix_caching=False)
    for request_id in (1, 2):
        scheduler.add(make_request(request_id, range(9), max_tokens=1), 0.0)
        batch, (delta,) = step(scheduler)
        assert batch.num_tokens == 9
        assert delta.prefix[:2] == (0, "prefix caching is off")


def test_tenants_are_charged_for_what_is_computed():
    scheduler = make_scheduler("fair", block_size=4)
    scheduler.add(make_request(1, range(9), max_tokens=3, tenant="a"), 0.0)
    finish(scheduler)
    assert scheduler.roster.order.level("a") == 9 + 3
    scheduler.add(make_request(2, range(9), max_tokens=3, tenant="a"), 0.0)
    finish(scheduler)
    assert scheduler.roster.order.level("a") == 12 + 1 + 3


def test_nobody_is_charged_twice_for_a_prompt():
    scheduler = make_scheduler("fair", num_blocks=5, block_size=4)
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=4, max_tokens=12, tenant=f"tenant {number}")
    finish(scheduler)
    assert scheduler.num_preemptions
    assert [scheduler.roster.order.level(f"tenant {number}") for number in (1, 2, 3)] == [16, 16, 16]


# Prompt log probabilities


def prompt_logprobs_of(batch, num_prompt=4):
    """What a runner gives: those of the chunk's own prompt tokens, the very first left out."""
    return tuple(
        tuple(Logprob(position, -1.0, ()) for position in range(max(chunk.start, 1), min(chunk.end, num_prompt)))
        for chunk in batch.chunks
    )


def test_prompt_logprobs_are_told_once():
    """Also by one that was pushed out and computed its prompt again."""
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    reported = {number: [] for number in (1, 2, 3)}
    for number in reported:
        add(scheduler, number, num_prompt=4, max_tokens=12, prompt_logprobs=0)
    for _ in range(100):
        batch = scheduler.schedule(0.0)
        if batch is None:
            break
        for delta in scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch)), 0.0):
            reported[delta.request_id] += [logprob.token_id for logprob in delta.prompt_logprobs]
    assert scheduler.num_preemptions
    assert reported == {number: [1, 2, 3] for number in (1, 2, 3)}


def test_prompt_logprobs_of_a_prompt_pushed_out_half_way_are_told_once():
    scheduler = make_scheduler(max_batch_tokens=4, max_sequences=4)
    add(scheduler, 1, num_prompt=12, prompt_logprobs=0)
    reported = []
    for number in range(6):
        batch = scheduler.schedule(0.0)
        for delta in scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch, 12)), 0.0):
            reported += [logprob.token_id for logprob in delta.prompt_logprobs]
        if number == 1:
            scheduler.roster.preempt(running(scheduler)[1, 0])
    assert reported == list(range(1, 12))


def test_prompt_logprobs_come_piece_by_piece_and_need_no_tokens_beside_them():
    scheduler = make_scheduler(max_batch_tokens=2, max_sequences=2)
    add(scheduler, 1, num_prompt=4, prompt_logprobs=0)
    reported = []
    for _ in range(3):
        batch = scheduler.schedule(0.0)
        deltas = scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch)), 0.0)
        reported += [(len(delta.token_ids), [one.token_id for one in delta.prompt_logprobs]) for delta in deltas]
    assert reported == [(0, [1]), (1, [2, 3]), (1, [])]


def test_prompt_logprobs_need_the_whole_prompt_computed():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    scheduler.add(make_request(2, range(1000, 1009), max_tokens=1, prompt_logprobs=0), 0.0)
    batch, (delta,) = step(scheduler)
    assert batch.num_tokens == 9
    assert delta.prefix[:2] == (0, "prompt log probabilities need the whole prompt computed")


def test_only_who_asked_is_told_prompt_logprobs():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=4)
    add(scheduler, 2, num_prompt=4, prompt_logprobs=0, n=2)
    reported = {}
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        for delta in scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch)), 0.0):
            key = delta.request_id, delta.choice
            reported[key] = reported.get(key, 0) + len(delta.prompt_logprobs)
    assert reported == {(1, 0): 0, (2, 0): 3, (2, 1): 0}


def test_logprobs_go_with_their_tokens():
    scheduler = make_scheduler()
    add(scheduler, 1)
    add(scheduler, 2, logprobs=1)
    batch = scheduler.schedule(0.0)
    logprob = Logprob(7, -0.5, ((7, -0.5),))
    one, two = scheduler.commit(batch, output_of(batch, logprobs=((), (logprob,))), 0.0)
    assert one.logprobs == ()
    assert two.logprobs == (logprob,)
