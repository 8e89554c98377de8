"""Sequences held to grammars are answered as they would be alone, whatever happens around them."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest

from penstock.runtime.core.batch import Fault, FinishReason
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafters.table import make_speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.grammar_state import GrammarState
from tests.engine.answers import LIMITS, Clock, drain, make_request
from tests.engine.faulty import FailingRunner
from tests.engine.masked import END, MaskedOracle, expected_answer, grammar_state

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a long value to come", "b"]}, "on": {"type": "boolean"}},
    "required": ["kind", "on"],
    "additionalProperties": False,
}
WAYS = ({"schema": SCHEMA}, {"regex": "[a-c]{2,9}!"}, {"choice": ("yes", "no", "an answer of some length")}, {})


def make_requests(seed: int, num_requests: int = 6):
    choose = Random(seed)
    return [
        make_request(
            number,
            [choose.randrange(1, 256) for _ in range(choose.randrange(1, 9))],
            max_tokens=choose.randrange(6, 60),
            n=choose.choice((1, 1, 3)),
            seed=choose.randrange(9),
            temperature=choose.choice((0.0, 1.0)),
            stop_token_ids=(END,),
            **choose.choice(WAYS),
        )
        for number in range(num_requests)
    ]


def make_engine(
    limits=LIMITS, *, depth=1, num_drafts=0, failing=(), follows: GrammarState | None = None, drafter="off"
):
    oracle = MaskedOracle(limits.num_blocks, limits.block_size, waits=depth > 1, num_drafts=num_drafts)
    runner = FailingRunner(oracle, frozenset(failing)) if failing else oracle
    return Engine(
        Scheduler(limits),
        runner,
        Clock(),
        depth=depth,
        grammar_state=grammar_state() if follows is None else follows,
        speculator=make_speculator(drafter, 3),
    )


def assert_held(requests, answers) -> None:
    for request in requests:
        for choice in range(request.params.n):
            answer = answers[request.request_id, choice]
            if request.params.grammar is not None:
                assert answer.tokens == expected_answer(request, choice)
                assert answer.reason in (FinishReason.STOP, FinishReason.LENGTH)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("drafter", ["ngram", "prediction"])
def test_drafts_change_nothing(depth, drafter):
    for seed in range(4):
        requests = [
            replace(request, prediction=tuple(expected_answer(request, 0)) if request.params.grammar else ())
            for request in make_requests(seed)
        ]
        engine = make_engine(depth=depth, drafter=drafter)
        for request in requests:
            engine.submit(request)
        assert_held(requests, drain(engine))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [0, 2])
def test_what_is_drawn_belongs_to_the_grammar_and_depends_on_nothing_else(depth, num_drafts):
    for seed in range(4):
        requests = make_requests(seed)
        engine = make_engine(depth=depth, num_drafts=num_drafts)
        for request in requests:
            engine.submit(request)
        assert_held(requests, drain(engine))
        assert not engine.proposer.grammar_state


@pytest.mark.parametrize("depth", [1, 2])
def test_whoever_is_preempted_goes_on_where_his_grammar_stood(depth):
    limits = LIMITS._replace(num_blocks=20, max_batch_tokens=16)
    num_preemptions = 0
    for seed in range(6):
        requests = make_requests(seed)
        engine = make_engine(limits, depth=depth)
        for request in requests:
            engine.submit(request)
        assert_held(requests, drain(engine))
        num_preemptions += engine.scheduler.num_preemptions
    assert num_preemptions


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_and_is_computed_again_draws_under_the_same_masks(depth):
    for seed in range(4):
        requests = make_requests(seed)
        engine = make_engine(depth=depth, failing=(2, 4))
        for request in requests:
            engine.submit(request)
        assert_held(requests, drain(engine))


def test_it_ends_with_its_grammar_and_the_last_token_counts():
    engine = make_engine()
    engine.submit(make_request(1, (5, 6), max_tokens=50, regex="ab{3}c"))
    answer = drain(engine)[1, 0]
    assert bytes(answer.tokens) == b"abbbc"
    assert (answer.reason, answer.finish.stop_token_id) == (FinishReason.STOP, None)


@pytest.mark.parametrize("depth", [1, 2])
def test_forced_tokens_take_no_step_each(depth):
    text = "only this, and nothing else can come of it"
    engine = make_engine(depth=depth)
    engine.submit(make_request(1, (5, 6), max_tokens=100, choice=(text, "x")))
    engine.submit(make_request(2, (5, 6), max_tokens=100, choice=(text,)))
    answers = drain(engine)
    assert bytes(answers[2, 0].tokens).decode() == text
    assert engine.num_steps < len(text) / 2
    assert engine.proposer.grammar_state.counts.num_forced > len(text) / 2


def test_with_steps_in_flight_nothing_is_proposed_beside_a_prompt():
    engine = make_engine(LIMITS._replace(max_batch_tokens=4), depth=2)
    engine.submit(make_request(1, (5, 6), max_tokens=100, choice=("x" * 40,)))
    engine.submit(make_request(2, (5,) * 60, max_tokens=1))
    while engine.scheduler.prompts or engine.scheduler.num_waiting or not engine.num_steps:
        engine.step()
        assert not engine.proposer.grammar_state.counts.num_forced
    drain(engine)
    assert engine.proposer.grammar_state.counts.num_forced


@pytest.mark.parametrize("executor", [None, "threads"])
def test_a_grammar_that_cannot_be_used_is_the_clients_fault_and_nobody_elses(executor):
    pool = ThreadPoolExecutor(1) if executor else None
    engine = make_engine(follows=grammar_state(executor=pool))
    engine.submit(make_request(1, (5,), max_tokens=9, n=2, schema={"not": {}}))
    engine.submit(make_request(2, (5,), max_tokens=9, regex="[ab]{4}"))
    engine.submit(make_request(3, (5,), max_tokens=9))
    answers = drain(engine)
    for choice in (0, 1):
        assert answers[1, choice].finish.fault is Fault.REQUEST
        assert '"not"' in answers[1, choice].finish.message
    assert re.fullmatch("[ab]{4}", bytes(answers[2, 0].tokens).decode())
    assert len(answers[3, 0].tokens) == 9
    assert engine.proposer.grammar_state.counts.num_refused == 1
    if pool:
        pool.shutdown()


def test_a_request_given_up_while_its_grammar_is_compiled_ends_as_cancelled():
    class Never:
        def submit(self, work):
            self.work = work

    never = Never()
    engine = make_engine(follows=grammar_state(executor=never))
    engine.submit(make_request(1, (5,), max_tokens=9, n=2, regex="a+"))
    assert engine.step() == ()
    assert engine.has_work
    engine.cancel(1)
    assert [delta.finish.reason for delta in engine.step()] == [FinishReason.CANCELLED] * 2
    never.work()
    assert engine.step() == ()
    assert not engine.has_work


def test_a_matcher_that_breaks_ends_its_own_request():
    engine = make_engine()
    engine.submit(make_request(1, (5,), max_tokens=50, schema=SCHEMA))
    engine.submit(make_request(2, (5,), max_tokens=50, schema=SCHEMA))
    answers = {}

    def breaks(step):
        if step == 4:
            engine.proposer.grammar_state._matchers[1, 0].advance([7])

    answers = drain(engine, before_step=breaks)
    assert answers[1, 0].finish.fault is Fault.REQUEST
    assert json.loads(bytes(answers[2, 0].tokens))["kind"]


def test_without_words_a_grammar_is_refused():
    engine = Engine(Scheduler(LIMITS), MaskedOracle(LIMITS.num_blocks, LIMITS.block_size), Clock())
    engine.submit(make_request(1, (5,), regex="a"))
    assert drain(engine)[1, 0].finish.fault is Fault.REQUEST
