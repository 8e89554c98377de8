"""The loop: one request's failure is its own, refusals are answers, and messages keep their order."""

import random
import threading

import pytest

from penstock.errors import EngineError
from penstock.runtime.core.batch import Batch, Fault, Finish, FinishReason, StepOutput
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.loop.recovery import MAX_LOST_STEPS
from penstock.runtime.engine.oracle import OracleRunner
from penstock.runtime.engine.scripted import ScriptedRunner
from tests.engine.answers import (
    LIMITS,
    VOCAB_SIZE,
    Answers,
    Clock,
    assert_right,
    drain,
    expected,
    make_engine,
    make_request,
    serve,
)
from tests.engine.faulty import POISON, FailingRunner, PoisonedRunner

CROWD_LIMITS = LIMITS._replace(num_blocks=256, max_sequences=32, max_batch_tokens=48)


def oracle(limits=LIMITS, **options):
    return OracleRunner(limits.num_blocks, limits.block_size, vocab_size=VOCAB_SIZE, **options)


def crowd(seed: int, poisoned: int):
    """32 requests, one of them poisoned."""
    choose = random.Random(seed)
    return [
        make_request(
            number,
            (choose.randrange(VOCAB_SIZE) for _ in range(choose.randrange(6, 14))),
            max_tokens=choose.randrange(6, 12) if number != poisoned else 12,
            seed=number,
            n=1 if number == poisoned else choose.choice((1, 1, 1, 2)),
            adapter=POISON if number == poisoned else "",
        )
        for number in range(32)
    ]


FAILPOINTS = [(when, end) for when in ("before", "after", "result") for end in (1, 5, 6, 14, 15, 17, 18)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("when", "end"), FAILPOINTS)
def test_only_the_poisoned_request_fails(when, end, depth):
    poisoned = (7 * end + depth) % 32
    requests = crowd(end, poisoned)
    runner = PoisonedRunner(oracle(CROWD_LIMITS), lambda chunk: chunk.end >= end, when)
    answers = serve(requests, CROWD_LIMITS, runner=runner, depth=depth)
    victim = answers.pop((poisoned, 0))
    assert victim.finish == Finish(FinishReason.ERROR, "RuntimeError: a planted fault", Fault.ENGINE)
    right, _ = expected(requests[poisoned], 0, CROWD_LIMITS)
    assert victim.tokens == right[: len(victim.tokens)]
    assert_right([request for request in requests if request.request_id != poisoned], answers, CROWD_LIMITS)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after", "result"])
@pytest.mark.parametrize("end", [4, 17, 30, 31])
@pytest.mark.parametrize("poisoned", [0, 1, 3])
def test_whoever_begins_like_a_poisoned_request_is_answered_all_the_same(when, end, depth, poisoned):
    """It reads what the poisoned one was to write: at the first, an inner and the last chunk of its prompt, or after it."""
    requests = [
        make_request(number, (*range(26), 30 + number, 40, 50, 60), max_tokens=6, seed=number) for number in range(6)
    ]
    limits = LIMITS._replace(max_batch_tokens=12)
    runner = PoisonedRunner(
        oracle(limits), lambda chunk: chunk.end >= end, when, is_poisoned=lambda one: one.params.seed == poisoned
    )
    answers = serve(requests, limits, runner=runner, depth=depth)
    assert answers.pop((poisoned, 0)).reason == FinishReason.ERROR
    del requests[poisoned]
    assert_right(requests, answers, limits)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_what_was_promised_by_one_who_left_is_computed_if_its_step_failed(num_steps, depth):
    """The step is computed again without those who left, and others have taken what they were to write as cached."""
    limits = LIMITS._replace(max_batch_tokens=12)
    for failing in range(num_steps):
        engine = make_engine(limits, runner=FailingRunner(oracle(limits), frozenset({failing})), depth=depth)
        engine.submit(make_request(1, (*range(26), 50), max_tokens=6))
        answers = Answers()
        for _ in range(num_steps):
            answers.hear(engine.step())
        engine.cancel(1)
        requests = [make_request(number, (*range(26), 50 + number), max_tokens=6) for number in (2, 3)]
        for request in requests:
            engine.submit(request)
        drain(engine, answers)
        answers.pop((1, 0))
        assert_right(requests, answers, limits)


class Unsound:
    """Says that it computed nothing finite for whoever begins in blocks that another chunk of its step did not get to fill."""

    def __init__(self, inner, poisoned):
        self.inner = inner
        self.poisoned = poisoned

    def launch(self, batch):
        is_poisoned = [
            chunk.arrival is not None and chunk.arrival.params.seed == self.poisoned for chunk in batch.chunks
        ]
        if any(is_poisoned):
            raise RuntimeError("a planted fault")
        output = self.inner.launch(batch).result()
        failures = tuple((index, "NaN") for index, chunk in enumerate(batch.chunks) if chunk.arrival and chunk.start)
        return output._replace(failures=failures)


def test_those_who_come_out_wrong_beside_a_failure_are_not_counted_as_lost():
    """Two in a step: one cannot be computed, and the other not soundly without it. The engine is not at fault."""
    engine = make_engine(runner=Unsound(oracle(), 1))
    other = make_request(2, (*range(8), 20), max_tokens=6, seed=2)
    for request in (make_request(1, (*range(8), 9), max_tokens=6, seed=1), other):
        engine.submit(request)
    answers = drain(engine)
    assert answers.pop((1, 0)).reason == FinishReason.ERROR
    assert_right([other], answers)


def busy_requests(seed: int):
    """Requests that fork, share prefixes, push each other out of a small pool and end early."""
    choose = random.Random(seed)
    shared = tuple(choose.randrange(VOCAB_SIZE) for _ in range(9))
    return [
        make_request(
            number,
            shared[: choose.randrange(9)] + tuple(choose.randrange(VOCAB_SIZE) for _ in range(choose.randrange(1, 5))),
            max_tokens=choose.randrange(1, 10),
            n=choose.choice((1, 2, 3)),
            seed=number,
            stop_token_ids=(3, 5, 9),
        )
        for number in range(8)
    ]


class FailingCrowds(FailingRunner):
    """Fails only steps of several chunks, so that nobody is to blame."""

    def launch(self, batch: Batch):
        if len(batch.chunks) <= 1:
            return self.inner.launch(batch)
        return super().launch(batch)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "result"])
def test_a_step_that_failed_for_want_of_memory_is_computed_in_parts(when, depth):
    """Nobody fails, whatever was launched after it: forks, arrivals, pushed-out and cancelled sequences among them."""
    limits = LIMITS._replace(num_blocks=14, max_batch_tokens=16)
    for seed in range(30):
        requests = busy_requests(seed)
        failing = frozenset(random.Random(seed).sample(range(24), 8))
        runner = FailingCrowds(oracle(limits, num_drafts=seed % 3), failing, when)
        engine = make_engine(limits, runner=runner, depth=depth)
        for request in requests:
            engine.submit(request)
        answers = Answers()
        for _ in range(seed % 9):
            answers.hear(engine.step())
        engine.cancel(3)
        drain(engine, answers)
        for choice in range(requests[3].params.n):
            right, _ = expected(requests[3], choice, limits)
            reported = answers.pop((3, choice)).tokens
            assert reported == right[: len(reported)]
        assert_right([request for request in requests if request.request_id != 3], answers, limits)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_lone_request_that_cannot_be_computed_fails_alone(depth):
    """Steps launched for it before its failure was known do not count against the engine."""
    runner = PoisonedRunner(oracle(), lambda chunk: chunk.end >= 6)
    engine = make_engine(runner=runner, depth=depth)
    for number in range(MAX_LOST_STEPS - 1):
        engine.submit(make_request(number, (1, 2, 3), max_tokens=9, adapter=POISON))
        answer = drain(engine)[number, 0]
        assert answer.finish == Finish(FinishReason.ERROR, "RuntimeError: a planted fault", Fault.ENGINE)
        assert len(answer.tokens) == 3  # those drawn at positions 3, 4 and 5
    good = make_request(90, (1, 2, 3), max_tokens=9)
    engine.submit(good)
    assert_right([good], drain(engine))
    engine.submit(make_request(91, (1, 2, 3), max_tokens=9, adapter=POISON))
    assert drain(engine)[91, 0].reason == FinishReason.ERROR


def test_lone_failures_in_a_row_are_the_engines_fault():
    runner = PoisonedRunner(oracle(), lambda chunk: True)
    engine = make_engine(runner=runner)
    for number in range(MAX_LOST_STEPS):
        engine.submit(make_request(number, (1, 2), max_tokens=2, adapter=POISON))
        if number < MAX_LOST_STEPS - 1:
            drain(engine)
    with pytest.raises(EngineError, match="nothing of a step of 1 could be computed: RuntimeError: a planted fault"):
        engine.step()


@pytest.mark.parametrize("when", ["before", "after", "result"])
def test_a_step_of_which_nothing_can_be_computed_is_the_engines_fault(when):
    runner = PoisonedRunner(oracle(), lambda chunk: True, when, MemoryError)
    engine = make_engine(runner=runner)
    for number in range(4):
        engine.submit(make_request(number, (1, 2, number), max_tokens=2, adapter=POISON))
    with pytest.raises(EngineError, match="nothing of a step of 4 could be computed: MemoryError"):
        engine.step()


def test_blocks_that_cannot_be_copied_are_the_engines_fault():
    class Copyless(FailingRunner):
        def launch(self, batch):
            if batch.copies:
                raise MemoryError("no copies today")
            return self.inner.launch(batch)

    engine = make_engine(runner=Copyless(oracle(), frozenset()))
    engine.submit(make_request(1, (1, 2, 3), n=2, max_tokens=4))
    with pytest.raises(EngineError, match="blocks could not be copied: MemoryError: no copies today"):
        drain(engine)


def test_whoever_left_before_the_failure_was_known_is_not_computed_again():
    """Of a failed step of two one has been cancelled: the other is tried alone before it is blamed."""
    runner = PoisonedRunner(oracle(), lambda chunk: chunk.end >= 6)
    engine = make_engine(runner=runner, depth=2)
    good = make_request(1, (1, 2, 3), max_tokens=9)
    for request in (good, make_request(2, (4, 5, 6), max_tokens=9, adapter=POISON)):
        engine.submit(request)
    answers = Answers()
    while runner.num_launches < 4:  # the fourth step reaches position 6 and fails unseen
        answers.hear(engine.step())
    engine.cancel(2)
    drain(engine, answers)
    assert answers.pop((2, 0)).reason == FinishReason.CANCELLED
    assert_right([good], answers)


def test_logprobs_and_drafts_of_parts_are_put_together():
    """Columns that only some parts have are filled for the others."""

    class Columns:
        def launch(self, batch):
            if len(batch.chunks) > 1:
                raise RuntimeError("too many")
            row = batch.chunks[0].row
            tokens = ((row,),) if batch.chunks[0].samples else ((),)
            return StepOutput(tokens, logprobs=((f"logprob {row}",),) if row else ())

    engine = make_engine(runner=Columns())
    for number in range(3):
        engine.submit(make_request(number, (1, number), max_tokens=1))
    deltas = engine.step()
    assert [delta.token_ids for delta in deltas] == [(0,), (1,), (2,)]
    assert [delta.logprobs for delta in deltas] == [(), ("logprob 1",), ("logprob 2",)]


# Messages


def test_refusals_are_answers_with_the_right_fault():
    engine = make_engine(LIMITS._replace(max_waiting=2, max_sequences=1))
    engine.submit(make_request(1, range(40), max_tokens=300, n=2))
    engine.submit(make_request(2, (1,), max_tokens=1))
    engine.submit(make_request(4, (1,), max_tokens=1))
    engine.submit(make_request(3, (1,), max_tokens=1, n=2))
    engine.submit(make_request(2, (1,), max_tokens=1))
    faults = [(delta.request_id, delta.choice, delta.finish.fault) for delta in engine.step() if delta.finish.fault]
    assert faults == [
        (1, 0, Fault.REQUEST),
        (1, 1, Fault.REQUEST),
        (3, 0, Fault.CAPACITY),
        (3, 1, Fault.CAPACITY),
        (2, 0, Fault.REQUEST),
    ]


def test_a_refusal_says_why():
    (delta,) = serve_one_refused(make_request(1, range(64), max_tokens=200))
    assert "maximum context length is 200 tokens" in delta.finish.message
    assert delta.finish.reason == FinishReason.ERROR


def serve_one_refused(request):
    engine = make_engine()
    engine.submit(request)
    return engine.step()


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_messages_are_taken_in_the_order_they_were_handed_over(waits):
    """A cancel that follows its request is never lost, however often the loop looked into the inbox."""
    engine = make_engine()
    engine.submit(make_request(1, (1, 2), max_tokens=50))
    engine.cancel(1)
    engine.submit(make_request(2, (1, 2), max_tokens=1))
    for _ in range(waits):
        assert engine.wait(0)
        assert engine.has_work
    answers = drain(engine)
    assert answers[1, 0].reason == FinishReason.CANCELLED
    assert answers[2, 0].reason == FinishReason.LENGTH
    assert not engine.wait(0)


def test_wait_returns_when_something_is_handed_over():
    engine = make_engine()
    thread = threading.Thread(target=engine.submit, args=(make_request(1, (1,), max_tokens=1),))
    thread.start()
    assert engine.wait(60.0)
    thread.join()
    assert len(engine.step()) == 1


class Rehearsing(OracleRunner):
    num_rehearsals = 0

    def rehearse(self) -> bool:
        self.num_rehearsals += 1
        return self.num_rehearsals < 3


def test_a_client_that_asks_again_at_once_does_not_wait_for_a_rehearsal():
    runner = Rehearsing(LIMITS.num_blocks, LIMITS.block_size, vocab_size=VOCAB_SIZE)
    engine = make_engine(runner=runner)
    for number in range(3):
        threading.Timer(0.05, engine.submit, [make_request(number, (1, 2, 3), max_tokens=2)]).start()
        assert engine.wait(60.0)
        drain(engine)
    assert runner.num_rehearsals == 0
    assert not engine.wait(0.0)  # nothing came in a whole wait
    assert not engine.wait(0.0)
    assert runner.num_rehearsals == 3


def test_books_are_checked_once_when_nothing_comes():
    engine = make_engine()
    engine.submit(make_request(1, (1, 2, 3), max_tokens=2))
    drain(engine)
    looks = []
    engine.scheduler.check = lambda: looks.append(None)
    assert not engine.wait(0.0)
    assert not engine.wait(0.0)
    assert len(looks) == 1


def test_books_that_do_not_balance_end_the_engine():
    engine = make_engine()
    engine.submit(make_request(1, (1, 2, 3), max_tokens=2))
    drain(engine)
    engine.scheduler.pool._free.append(3)
    with pytest.raises(EngineError, match="do not balance"):
        engine.wait(0.0)


def test_threads_may_submit_and_cancel():
    engine = make_engine(LIMITS._replace(max_waiting=10_000))
    requests = [make_request(number, (number % VOCAB_SIZE, 7), max_tokens=5, seed=number) for number in range(200)]

    def hand_over(part):
        for request in requests[part::4]:
            engine.submit(request)
            if request.request_id % 5 == 0:
                engine.cancel(request.request_id)

    threads = [threading.Thread(target=hand_over, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    answers = Answers()
    while any(thread.is_alive() for thread in threads):
        answers.hear(engine.step())
    drain(engine, answers)
    assert len(answers) == 200
    kept = [request for request in requests if request.request_id % 5]
    for request in requests[::5]:
        answer = answers.pop((request.request_id, 0))
        assert answer.reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    assert_right(kept, answers)


def test_cancelling_what_is_unknown_or_over_does_nothing():
    engine = make_engine()
    engine.cancel(17)
    assert engine.step() == ()
    request = make_request(1, (1,), max_tokens=1)
    engine.submit(request)
    assert_right([request], drain(engine))
    engine.cancel(1)
    assert engine.step() == ()
    assert not engine.has_work


# Time


def test_the_heart_beats_at_every_loop_and_counts_steps_launched():
    engine = make_engine(depth=2)
    assert (engine.num_loops, engine.num_steps) == (0, 0)
    engine.step()
    assert (engine.num_loops, engine.num_steps) == (1, 0)
    engine.submit(make_request(1, (1, 2), max_tokens=2))
    num_loops, turn_s = engine.num_loops, engine.turn_s
    drain(engine)
    assert engine.num_steps == 2
    assert engine.num_loops > num_loops + 2
    assert engine.turn_s > turn_s


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_as_many_steps_as_the_depth_are_on_their_way(depth):
    """While there is more to do, a step is collected only when `depth` of them are launched."""
    runner = ScriptedRunner(batches=[])
    engine = Engine(Scheduler(LIMITS), runner, Clock(), depth=depth)
    engine.submit(make_request(1, (1, 2), max_tokens=20))
    reported = 0
    for number in range(1, 15):
        reported += len(engine.step())
        assert (len(runner.batches), reported) == (number, max(number - depth + 1, 0))


def test_a_step_with_copies_is_over_before_another_is_launched():
    runner = ScriptedRunner(batches=[])
    engine = Engine(Scheduler(LIMITS), runner, Clock(), depth=3)
    engine.submit(make_request(1, (1, 2), n=2, max_tokens=20))
    while not any(batch.copies for batch in runner.batches):
        deltas = engine.step()
    assert runner.batches[-1].copies
    assert deltas[-1].choice == 1
    assert not engine.scheduler.flights


def test_a_deadline_ends_what_is_late():
    engine = make_engine()
    engine.submit(make_request(1, (1, 2), max_tokens=100, deadline_s=9.0))
    answer = drain(engine)[1, 0]
    assert answer.finish.fault == Fault.DEADLINE
    assert 0 < len(answer.tokens) < 100
