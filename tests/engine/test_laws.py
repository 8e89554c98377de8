"""What is computed never depends on how: many or alone, in pieces or whole, cached or cold, disturbed or not."""

from random import Random

import pytest

from penstock.runtime.core import blocks
from penstock.runtime.core.batch import Fault, FinishReason
from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC, dynamic
from penstock.runtime.core.queue.order import ORDERS
from tests.engine.answers import (
    LIMITS,
    VOCAB_SIZE,
    Answers,
    assert_right,
    drain,
    expected,
    make_engine,
    make_request,
    serve,
)
from tests.engine.workloads import make_prompt, make_workload

TIGHT = LIMITS._replace(num_blocks=9, max_batch_tokens=16)
"""Room for little more than one request at its longest: the others push each other out."""


@pytest.mark.parametrize("seed", range(20))
def test_many_at_once_are_answered_as_one_by_one(seed):
    requests = make_workload(seed, 16)
    together = serve(requests)
    assert_right(requests, together)
    alone = Answers()
    for request in requests:
        alone.update(serve([request]))
    assert together.tokens == alone.tokens


@pytest.mark.parametrize("block_size", [1, 2, 4, 7])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6, 7, 8, 13, 100])
def test_a_prompt_in_pieces_is_a_prompt(budget, block_size):
    limits = LIMITS._replace(block_size=block_size, max_batch_tokens=budget, max_sequences=min(budget, 8))
    requests = make_workload(budget)
    assert_right(requests, serve(requests, limits))


@pytest.mark.parametrize("seed", range(12))
def test_cached_is_cold_is_cached_after_eviction(seed):
    requests = make_workload(seed, 6)
    engine = make_engine(LIMITS._replace(num_blocks=24))

    def ask(first_id):
        again = [
            make_request(first_id + number, one.prompt, salt=one.salt, adapter=one.adapter, seed=7, max_tokens=5)
            for number, one in enumerate(requests)
        ]
        for request in again:
            engine.submit(request)
        answers = drain(engine)
        assert_right(again, answers)
        return sum(answer.prefix.num_tokens for answer in answers.values())

    cold = ask(100)
    warm = ask(200)
    assert warm > cold
    flood = make_request(300, make_prompt(Random(seed + 1000), 96), max_tokens=1)
    engine.submit(flood)
    assert_right([flood], drain(engine))
    assert engine.scheduler.pool.num_evictions
    assert ask(400) == cold, "nothing of them was left"
    assert ask(500) == warm


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [True, False])
def test_whoever_is_pushed_out_by_want_of_blocks_is_answered_as_undisturbed(caching, depth, num_drafts):
    limits = TIGHT._replace(prefix_caching=caching)
    num_preemptions = 0
    for seed in range(10):
        requests = make_workload(seed, 10)
        engine = make_engine(limits, depth=depth, num_drafts=num_drafts)
        for request in requests:
            engine.submit(request)
        assert_right(requests, drain(engine), limits)
        num_preemptions += engine.scheduler.num_preemptions
    assert num_preemptions > 10


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("step", range(14))
def test_whoever_is_pushed_out_at_any_step_is_answered_as_undisturbed(step, depth):
    requests = make_workload(step, 4)
    engine = make_engine(LIMITS._replace(max_batch_tokens=8), depth=depth, num_drafts=step % 2 * 2)
    for request in requests:
        engine.submit(request)

    def preempt(now):
        scheduler = engine.scheduler
        if now >= step and now % 3 == step % 3:
            for sequence in list(scheduler.roster.running)[now % 2 :: 2]:
                scheduler.roster.preempt(sequence)

    answers = drain(engine, before_step=lambda now: preempt(now) if now < step + 9 else None)
    assert_right(requests, answers)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
def test_speculated_is_plain(num_drafts, depth):
    for seed in range(4):
        requests = make_workload(seed)
        for limits in (LIMITS, TIGHT):
            assert_right(requests, serve(requests, limits, num_drafts=num_drafts, depth=depth), limits)


MANY_STATES = CacheGroups(BlockGroup(), (), 24)
FEW_STATES = CacheGroups(BlockGroup(), (BlockGroup(6),), 9)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [1, 3, 5])
@pytest.mark.parametrize("groups", [MANY_STATES, FEW_STATES])
def test_speculated_is_plain_where_states_go_back(groups, num_drafts, depth):
    """Wrong drafts have changed a state: it goes back to before them, whoever is pushed out meanwhile."""
    for seed in range(3):
        requests = make_workload(seed)
        for limits in (LIMITS, TIGHT._replace(num_blocks=9 * groups.width), LIMITS._replace(max_batch_tokens=8)):
            limits = limits._replace(groups=groups)
            assert_right(requests, serve(requests, limits, num_drafts=num_drafts, depth=depth), limits)


def test_speculation_saves_steps_where_states_go_back():
    limits = LIMITS._replace(groups=MANY_STATES, block_size=8)
    request = make_request(1, (1, 2, 3), max_tokens=60)
    engine = make_engine(limits, num_drafts=3)
    engine.submit(request)
    assert_right([request], drain(engine), limits)
    assert engine.num_steps < 45


def test_speculation_saves_steps():
    """Drafts that turn out right are several tokens of one step."""
    request = make_request(1, (1, 2, 3), max_tokens=60)
    counts = []
    for num_drafts in (0, 3):
        engine = make_engine(num_drafts=num_drafts)
        engine.submit(request)
        assert_right([request], drain(engine))
        counts.append(engine.num_steps)
    assert counts[0] == 60
    assert counts[1] < 40


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_overlap_changes_nothing(seed, depth):
    requests = make_workload(seed, 12)
    for limits in (LIMITS, TIGHT):
        assert serve(requests, limits, depth=depth).tokens == serve(requests, limits).tokens


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batching", [CONTINUOUS, STATIC, dynamic(3.0)])
def test_orders_and_ways_of_batching_differ_only_in_time(batching, order):
    for seed in range(4):
        requests = make_workload(seed, 10)
        for limits in (LIMITS, TIGHT, LIMITS._replace(max_sequences=2)):
            answers = serve(requests, limits, order=order, batching=batching, depth=1 + seed % 2, num_drafts=seed % 2)
            assert_right(requests, answers, limits)


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 9])
def test_choices_are_seeds_of_their_own(num_prompt):
    """Each of n choices is what it would be alone, and the first is what a request for one would get."""
    prompt = make_prompt(Random(num_prompt), num_prompt)
    for limits in (LIMITS, LIMITS._replace(num_blocks=6), LIMITS._replace(prefix_caching=False)):
        many = make_request(1, prompt, n=5, max_tokens=8, seed=3)
        one = make_request(1, prompt, max_tokens=8, seed=3)
        answers = serve([many], limits)
        assert_right([many], answers, limits)
        assert answers[1, 0].tokens == serve([one], limits)[1, 0].tokens
        assert len({tuple(answer.tokens) for answer in answers.values()}) == 5


def test_greedy_choices_are_alike():
    answers = serve([make_request(1, (1, 2, 3, 4, 5), n=4, max_tokens=9, temperature=0.0)])
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 1


# Ends


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_answers_end_exactly_where_they_should(depth, num_drafts):
    prompt = (5, 6, 7)
    right, _ = expected(make_request(1, prompt, max_tokens=40), 0)
    for stop_at in range(0, 40, 3):
        stop = right[stop_at]
        first = right.index(stop)
        for min_tokens in (0, first, first + 1, stop_at, stop_at + 1, 39):
            request = make_request(1, prompt, max_tokens=40, stop_token_ids=(stop,), min_tokens=min_tokens)
            answer = serve([request], depth=depth, num_drafts=num_drafts)[1, 0]
            ends = [number for number, token in enumerate(right, 1) if token == stop and number > min_tokens]
            assert answer.tokens == right[: ends[0] if ends else 40]
            assert answer.reason == (FinishReason.STOP if ends else FinishReason.LENGTH)
            assert answer.finish.stop_token_id == (stop if ends else None)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 10])
def test_exactly_as_many_tokens_as_asked(max_tokens):
    requests = [make_request(number, (number, 9), max_tokens=max_tokens, n=2) for number in range(5)]
    answers = serve(requests, num_drafts=3, depth=2)
    assert {len(answer.tokens) for answer in answers.values()} == {max_tokens}


# Sharing


def test_what_is_shared_is_computed_once():
    limits = LIMITS._replace(num_blocks=100, block_size=16, max_context=2000, max_batch_tokens=600)
    engine = make_engine(limits)
    shared = make_prompt(Random(1), 512)
    first = make_request(1, (*shared, 1), max_tokens=2)
    engine.submit(first)
    answers = drain(engine)
    assert answers[1, 0].prefix[:2] == (0, "nothing cached begins alike")
    second = make_request(2, (*shared, *make_prompt(Random(2), 37)), max_tokens=2)
    engine.submit(second)
    launched = []
    inner = engine.runner.launch
    engine.runner.launch = lambda batch: launched.append(batch) or inner(batch)
    answers = drain(engine, answers)
    assert answers[2, 0].prefix[:2] == (512, "differs from every cached prompt")
    assert [batch.num_tokens for batch in launched] == [37, 1]
    assert_right([first, second], answers, limits)


NAMESPACES = [("", ""), ("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"), ("a", ""), ("", "a"), ("a", "c")]


def test_namespaces_never_share():
    """Change any one field and nothing is found; come back and everything is."""
    engine = make_engine(LIMITS._replace(num_blocks=200))
    prompt = make_prompt(Random(0), 33)
    for turn, num_found in enumerate((0, 32)):
        for number, (salt, adapter) in enumerate(NAMESPACES):
            request = make_request(100 * turn + number, prompt, salt=salt, adapter=adapter, max_tokens=1)
            engine.submit(request)
            answers = drain(engine)
            assert answers[request.request_id, 0].prefix.num_tokens == num_found
            assert_right([request], answers)


@pytest.mark.parametrize("collide", [lambda parent, tokens: b"same", lambda parent, tokens: bytes([sum(tokens) % 2])])
def test_hashes_that_collide_cost_time_but_no_answer(monkeypatch, collide):
    monkeypatch.setattr(blocks, "block_hash", collide)
    for seed in range(12):
        requests = make_workload(seed, 12)
        for limits in (LIMITS, TIGHT):
            assert_right(requests, serve(requests, limits, depth=1 + seed % 2), limits)


# Leaving


def holders(engine):
    return {one.request.request_id for one in engine.scheduler.roster.running}


def waits(engine):
    return {one.request.request_id for one in engine.scheduler.roster.order}


def is_prefilling(engine):
    return any(one.request.request_id == 1 and 0 < one.num_computed < 20 for one in engine.scheduler.roster.running)


def is_decoding(engine):
    return any(one.request.request_id == 1 and len(one.tokens) > 21 for one in engine.scheduler.roster.running)


def is_in_flight(engine):
    return 1 in holders(engine) and bool(engine._launched)


def has_hidden_siblings(engine):
    return any(one.request.request_id == 1 and one.siblings for one in engine.scheduler.roster.running)


def has_waiting_siblings(engine):
    return 1 in holders(engine) and 1 in waits(engine)


def waits_again(engine):
    return any(one.request.request_id == 1 and one.epoch for one in engine.scheduler.roster.order)


def waits_at_first(engine):
    return 1 in waits(engine)


def some_choices_ended(engine):
    choices = engine.scheduler._requests.get(1, ())
    return any(one.finish for one in choices) and not all(one.finish for one in choices)


STATES = {
    "waiting": (waits_at_first, {"max_sequences": 1}),
    "prefilling": (is_prefilling, {"max_batch_tokens": 8}),
    "decoding": (is_decoding, {}),
    "in flight": (is_in_flight, {}),
    "siblings not yet queued": (has_hidden_siblings, {"max_batch_tokens": 8}),
    "siblings waiting": (has_waiting_siblings, {"max_sequences": 2}),
    "waiting again": (waits_again, {"num_blocks": 12, "max_sequences": 3}),
    "some choices ended": (some_choices_ended, {"max_sequences": 2}),
}


@pytest.mark.parametrize("ending", ["cancel", "deadline"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("state", STATES)
def test_whoever_leaves_in_any_state_gives_everything_back_at_once(state, depth, ending):
    """Exactly one end for every choice, nothing held a moment later, and the others never notice."""
    reached, tight = STATES[state]
    limits = LIMITS._replace(**tight)
    prompt = make_prompt(Random(5), 21)
    leaver = make_request(1, prompt, n=3, max_tokens=12, deadline_s=1e6, seed=4)
    others = [
        make_request(0, make_prompt(Random(6), 9), max_tokens=25),
        make_request(2, make_prompt(Random(7), 9), max_tokens=25),
        make_request(3, prompt, max_tokens=8, seed=9),
    ]
    engine = make_engine(limits, depth=depth)
    for request in (others[0], leaver, *others[1:]):
        engine.submit(request)
    answers, scheduler = Answers(), engine.scheduler
    while not reached(engine):
        answers.hear(engine.step())
        assert engine.has_work, "the state was never reached"
        if not engine._launched and not reached(engine) and state == "in flight" and depth == 1:
            batch = scheduler.schedule(0.0)
            engine._launched.append((batch, engine._launch(batch), 0.0))
    answers.hear(scheduler.cancel(1) if ending == "cancel" else scheduler.expire(1e6))
    assert 1 not in holders(engine) | waits(engine)
    assert 1 not in scheduler._requests
    scheduler.check()
    gone = [answers[1, choice] for choice in range(3)]
    reasons = {answer.reason for answer in gone if answer.reason != FinishReason.LENGTH}
    assert reasons == {FinishReason.CANCELLED if ending == "cancel" else FinishReason.ERROR}
    for choice, answer in enumerate(gone):
        right, _ = expected(leaver, choice)
        assert answer.tokens == right[: len(answer.tokens)]
        assert answer.finish.fault in (None, Fault.DEADLINE)
    drain(engine, answers)
    for choice in range(3):
        del answers[1, choice]
    assert_right(others, answers)


@pytest.mark.parametrize("choice", range(3))
@pytest.mark.parametrize("step", range(12))
def test_one_choice_may_leave_and_the_others_stay(step, choice):
    request = make_request(1, make_prompt(Random(step), 10), n=3, max_tokens=6)
    engine = make_engine(LIMITS._replace(max_batch_tokens=4, max_sequences=4), depth=1 + step % 2)
    engine.submit(request)
    answers = drain(engine, before_step=lambda now: engine.cancel(1, choice) if now == step else None)
    for number in range(3):
        right, reason = expected(request, number)
        answer = answers[1, number]
        if number == choice and answer.reason == FinishReason.CANCELLED:
            assert answer.tokens == right[: len(answer.tokens)]
        else:
            assert (answer.tokens, answer.reason) == (right, reason)


def test_a_wide_vocabulary_of_prompts_is_never_mixed_up():
    """A nonce in every prompt: an answer made of another's tokens would differ."""
    requests = [
        make_request(number, (number % VOCAB_SIZE, number // VOCAB_SIZE), max_tokens=4) for number in range(300)
    ]
    assert_right(requests, serve(requests, LIMITS._replace(max_sequences=32, max_batch_tokens=40), depth=2))
