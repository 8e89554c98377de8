"""The log of decisions: a line a step that says who computes what and why others do not; nothing where nobody reads it."""

import logging

import pytest

from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.explain import LOGGER, explain_steps
from penstock.runtime.engine.oracle import OracleRunner


def make_engine(*, num_blocks: int = 8, max_sequences: int = 2) -> Engine:
    limits = Limits(num_blocks, 4, 32, 16, max_sequences, max_waiting=8, max_waiting_tokens=1000)
    return Engine(Scheduler(limits), OracleRunner(num_blocks, 4), lambda: 0.0)


def lines_of(engine: Engine, caplog: pytest.LogCaptureFixture, num_steps: int) -> list[str]:
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        explain_steps(engine)
        for _ in range(num_steps):
            engine.step()
    return [record.getMessage() for record in caplog.records]


def ask(engine: Engine, request_id: int, num_prompt: int, max_tokens: int = 8) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    engine.submit(
        Request(request_id=request_id, prompt=tuple(range(request_id, request_id + num_prompt)), params=params)
    )


def test_a_step_says_who_computes_how_much_and_what_others_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    for request_id in (1, 2, 3):
        ask(engine, request_id, 6)
    first, second = lines_of(engine, caplog, 2)
    assert first.endswith(": 12 of 16 tokens: 1 prefills 0-6 of 6, 2 prefills 0-6 of 6; 1 wait for rows")
    assert second.endswith(": 2 of 16 tokens: 1 decodes 1, 2 decodes 1; 1 wait for rows")


def test_a_prompt_that_waits_for_blocks_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(num_blocks=4)
    for request_id in (1, 2):
        ask(engine, request_id, 9)
    assert lines_of(engine, caplog, 1)[0].endswith("; 1 wait for blocks")


def test_a_preemption_names_both_and_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(num_blocks=5)
    ask(engine, 1, 5, 12)
    ask(engine, 2, 7, 12)
    lines = lines_of(engine, caplog, 12)
    assert any("preempted 2 for 1, which lacks blocks" in line for line in lines), lines


def test_nothing_is_told_where_nobody_reads() -> None:
    engine = make_engine()
    explain_steps(engine)
    assert not engine.listeners.scheduled
