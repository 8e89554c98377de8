"""Laws of the messages: what is sent is what arrives, and what is no message is refused, whatever its bytes."""

import pickle
from random import Random

import msgspec
import pytest

from penstock.errors import EngineError
from penstock.runtime.core.batch import Delta, Fault, Finish, FinishReason, Logprob, PrefixHit
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.scheduler import SchedulerLoad
from penstock.runtime.engine.machine import Facts
from penstock.runtime.engine.wire import (
    Beat,
    Cancel,
    Embedded,
    EmbedPrompts,
    Failed,
    Phase,
    Ready,
    StepReport,
    Stop,
    Submit,
    decode_command,
    decode_report,
    encode,
)

PARAMS = SamplingParams(temperature=0.5, logit_bias=((3, -1.5),), stop=("end",), banned_sequences=((1, 2),), logprobs=2)
REQUEST = Request(
    request_id=2**40, prompt=(1, 2, 3), params=PARAMS, arrival_s=1.5, deadline_s=9.0, tenant="t", salt="s"
)
DELTAS = (
    Delta(1, 0, (5, 6), None, (Logprob(5, -0.5, ((5, -0.5), (6, -1.5))),), (Logprob(1, -2.0, ()),), PrefixHit(16, "")),
    Delta(2, 3, (), Finish(FinishReason.ERROR, "why", Fault.DEADLINE)),
    Delta(3, 0, (9,), Finish(FinishReason.STOP, stop_token_id=9)),
)
FACTS = Facts(
    model="m",
    max_context=8,
    vocab_size=9,
    num_blocks=1,
    block_size=16,
    max_sequences=2,
    max_waiting=3,
    max_waiting_tokens=4,
    memory=(("weights", 5),),
)
COMMANDS = [Submit(REQUEST), Cancel(7), EmbedPrompts(1, ((1, 2), (3,))), Stop()]
REPORTS = [
    Phase("read", 1.5),
    Ready(FACTS),
    StepReport(2.0, DELTAS, SchedulerLoad(1, 2, 3, 0.5, 4), 9),
    Beat(3, True),
    Embedded(1, ((0.5, -0.5),)),
    Failed("why", True),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_arrive_as_they_were_sent(command: object) -> None:
    assert decode_command(encode(command)) == command  # type: ignore[arg-type]


@pytest.mark.parametrize("report", REPORTS)
def test_reports_arrive_as_they_were_sent(report: object) -> None:
    assert decode_report(encode(report)) == report  # type: ignore[arg-type]


def test_what_is_no_message_is_refused() -> None:
    random = Random(0)
    frames = [b"", pickle.dumps(REQUEST.prompt), b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", msgspec.msgpack.encode({})]
    frames += [random.randbytes(random.randrange(64)) for _ in range(500)]
    for frame in frames:
        for decode in (decode_command, decode_report):
            with pytest.raises(EngineError, match="malformed"):
                decode(frame)


def test_every_damage_is_refused_or_reads_as_a_message_of_the_right_type() -> None:
    random = Random(1)
    frame = encode(REPORTS[2])  # type: ignore[arg-type]
    for _ in range(2000):
        damaged = bytearray(frame)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            report = decode_report(bytes(damaged))
        except EngineError:
            continue
        assert isinstance(report, StepReport)
        assert all(type(token) is int for delta in report.deltas for token in delta.token_ids)
