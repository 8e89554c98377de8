"""Speculated is plain: whoever guesses, however many, in whatever trouble, answers are the same and come in fewer steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import Ticket
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafter import NO_GUESS, Guess, View
from penstock.runtime.draft.drafters.table import DRAFTERS, make_speculator
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.grammar_state import StepMasks
from penstock.runtime.engine.oracle import OracleRunner
from tests.engine.answers import LIMITS, VOCAB_SIZE, assert_right, drain, expected, make_engine, make_request
from tests.engine.faulty import FailingRunner
from tests.engine.workloads import make_workload

TIGHT = LIMITS._replace(num_blocks=9, max_batch_tokens=16)


def predicted(request: Request, seed: int = 0) -> Request:
    """With a prediction of its first choice's answer in which some tokens are wrong, missing or too many."""
    choose = Random(seed)
    tokens, _ = expected(request, 0)
    reported: list[int] = []
    for token in tokens:
        kind = choose.randrange(12)
        reported += (
            [] if kind == 0 else [token, token] if kind == 1 else [(token + 1) % VOCAB_SIZE] if kind == 2 else [token]
        )
    return replace(request, prediction=tuple(reported))


@pytest.mark.parametrize("length", [None, 1, 3, 8])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", DRAFTERS)
def test_speculated_is_plain(name: str, depth: int, length: int | None) -> None:
    for seed in range(3):
        requests = [predicted(request, seed) for request in make_workload(seed)]
        for limits in (LIMITS, TIGHT):
            engine = make_engine(limits, depth=depth, speculator=make_speculator(name, length))
            for request in requests:
                engine.submit(request)
            assert_right(requests, drain(engine), limits)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("step", range(8))
def test_preemption_at_any_step_changes_nothing(step: int, depth: int) -> None:
    requests = [predicted(request, step) for request in make_workload(step, 4)]
    engine = make_engine(LIMITS._replace(max_batch_tokens=8), depth=depth, speculator=make_speculator("auto", 3))
    for request in requests:
        engine.submit(request)

    def preempt(now: int) -> None:
        if step <= now < step + 9 and now % 3 == step % 3:
            for sequence in list(engine.scheduler.roster.running)[now % 2 :: 2]:
                engine.scheduler.roster.preempt(sequence)

    assert_right(requests, drain(engine, before_step=preempt))


@pytest.mark.parametrize("failing", [2, 3, 4])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_changes_nothing(depth: int, failing: int) -> None:
    requests = [predicted(request) for request in make_workload(3, 6)]
    oracle = OracleRunner(LIMITS.num_blocks, LIMITS.block_size, vocab_size=VOCAB_SIZE)
    engine = make_engine(
        depth=depth, runner=FailingRunner(oracle, frozenset({failing})), speculator=make_speculator("auto", 3)
    )
    for request in requests:
        engine.submit(request)
    assert_right(requests, drain(engine))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prediction_that_comes_true_saves_most_steps(depth: int) -> None:
    request = make_request(1, range(8), max_tokens=60, temperature=0.0)
    counts = []
    for prediction in ((), tuple(expected(request, 0)[0])):
        engine = make_engine(depth=depth, speculator=make_speculator("auto", 7))
        engine.submit(replace(request, prediction=prediction))
        answers = drain(engine)
        assert_right([request], answers)
        counts.append((engine.num_steps, answers[1, 0].num_accepted))
    assert counts[0][0] >= 60
    assert counts[1][0] <= 10
    assert counts[1][1] >= 50


@pytest.mark.parametrize(("speculate", "is_checked"), [(0, False), (2, True), (None, True)])
def test_a_client_may_forbid_or_pin_drafts(speculate: int | None, is_checked: bool) -> None:
    request = make_request(1, range(8), max_tokens=40, temperature=0.0, speculate=speculate)
    engine = make_engine(speculator=make_speculator("auto", None))
    engine.submit(replace(request, prediction=tuple(expected(request, 0)[0])))
    answers = drain(engine)
    assert_right([request], answers)
    assert (answers[1, 0].num_checked > 0) == is_checked


def test_nothing_is_kept_of_those_that_have_ended() -> None:
    speculator = make_speculator("prediction", 4)
    assert speculator is not None
    engine = make_engine(speculator=speculator)
    for request in make_workload(1, 8):
        engine.submit(predicted(request))
    drain(engine)
    assert not any(value for value in vars(speculator).values() if isinstance(value, dict))


class Fickle:
    """Guesses only while a token is still being computed: once it is known, there is nothing to check."""

    name = "fickle"

    def __init__(self) -> None:
        self.is_under_way: Callable[[], bool] = lambda: False
        self.num_asked = 0

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        self.num_asked += 1
        return [Guess((1,), self.name) if self.is_under_way() else NO_GUESS for _ in views]

    def seconds(self, length: int) -> float:
        return 0.0

    def finish(self, view: View) -> None:
        pass


def test_steps_are_launched_ahead_again_where_they_are_awaited_in_vain() -> None:
    drafter = Fickle()
    engine = make_engine(depth=2, speculator=Speculator([drafter], length=1))
    drafter.is_under_way = lambda: any(sequence.num_pending for sequence in engine.scheduler.generating)
    request = make_request(1, range(8), max_tokens=180, temperature=0.0)
    engine.submit(request)
    assert_right([request], drain(engine))
    assert drafter.num_asked < 40


def test_drafters_that_take_long_in_vain_are_asked_now_and_then() -> None:
    """Steps of a second, asking takes a fifth of one: every tenth step, and for ever."""
    now_s = 0.0

    class Slow(Fickle):
        def propose(self, views: Sequence[View], most: int) -> list[Guess]:
            nonlocal now_s
            now_s += 0.2
            self.num_asked += 1
            return [NO_GUESS for _ in views]

    class Device(OracleRunner):
        def launch(self, batch: Batch, masks: StepMasks | None = None) -> Ticket:
            nonlocal now_s
            now_s += 1.0
            return super().launch(batch, masks)

    drafter = Slow()
    runner = Device(LIMITS.num_blocks, LIMITS.block_size, vocab_size=VOCAB_SIZE)
    engine = Engine(Scheduler(LIMITS), runner, lambda: now_s, speculator=Speculator([drafter]))
    request = make_request(1, range(8), max_tokens=180, temperature=0.0)
    engine.submit(request)
    assert_right([request], drain(engine))
    assert 15 <= drafter.num_asked <= 25
