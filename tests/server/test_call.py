"""Laws of a call: what is written where it arrives is what would be written later, and its faults are its own."""

import asyncio
import time
from typing import Any

import pytest

from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.text.stream.stop import StopSet
from penstock.runtime.text.stream.stream import TextRules
from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer
from penstock.service.server.calls.call import Call, Piece
from tests.engine.answers import expected_tokens
from tests.engine.test_client import config_of, run
from tests.machine import PATIENCE_S

TOKENIZER = byte_tokenizer()


class Memory:
    """A pipe that remembers, and takes nothing while it is full."""

    def __init__(self) -> None:
        self.data = b""
        self.is_writable = True
        self.num_parts = 0

    def write_part(self, data: bytes) -> None:
        self.data += data
        self.num_parts += 1


def reported(pieces: list[Piece]) -> bytes:
    return "".join(piece.content for piece in pieces).encode()


def call_of(client: EngineClient, prompt: bytes, *, max_tokens: int = 40, stop: str = "") -> Call:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    request = Request(request_id=client.next_id(), prompt=tuple(prompt), params=params, arrival_s=time.monotonic())
    return Call(client, TOKENIZER, [request], TextRules(StopSet([stop] if stop else [])))


async def follow(call: Call, pipe: Memory, reporting: Any = reported) -> None:
    call.start()
    call.report_at_once(pipe, reporting)
    try:
        while not call.is_over:
            news = await call.news()  # what is told at once meanwhile comes before it
            pipe.data += reported(news)
    finally:
        call.close()


def text_of(prompt: bytes, num_tokens: int = 40) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    return TOKENIZER.decode(expected_tokens(tuple(prompt), params, 0, num_tokens, 256))


def test_telling_at_once_tells_the_same() -> None:
    async def law(client: EngineClient) -> None:
        pipes = [Memory() for _ in range(8)]
        calls = [call_of(client, b"%d go on" % number) for number in range(8)]
        await asyncio.gather(*map(follow, calls, pipes))
        assert [pipe.data.decode() for pipe in pipes] == [text_of(b"%d go on" % number) for number in range(8)]
        assert sum(pipe.num_parts for pipe in pipes) > 100, "most of it was told where it arrived"

    run(law, config_of("oracle:step_ms=2"))


def test_a_full_pipe_leaves_the_telling_to_the_task() -> None:
    async def law(client: EngineClient) -> None:
        pipe = Memory()
        pipe.is_writable = False
        await follow(call_of(client, b"slow"), pipe)
        assert (pipe.data.decode(), pipe.num_parts) == (text_of(b"slow"), 0)

    run(law, config_of("oracle:step_ms=2"))


def test_a_stop_string_found_at_once_ends_the_call_and_frees_what_it_held() -> None:
    whole = text_of(b"stop me")
    stop = whole[20:23]

    async def law(client: EngineClient) -> None:
        pipe = Memory()
        await asyncio.wait_for(follow(call_of(client, b"stop me", max_tokens=4000, stop=stop), pipe), PATIENCE_S)
        assert pipe.data.decode() == whole[: whole.index(stop)]
        assert client.num_open == 0

    run(law, config_of("oracle:step_ms=2"))


def test_news_that_a_dialect_has_no_words_for_are_no_part() -> None:
    async def law(client: EngineClient) -> None:
        pipe = Memory()
        await follow(call_of(client, b"silent"), pipe, lambda pieces: b"")
        assert pipe.num_parts == 0

    run(law, config_of("oracle:step_ms=2"))


def test_a_call_that_cannot_be_told_fails_alone() -> None:
    def broken(pieces: list[Piece]) -> bytes:
        raise ZeroDivisionError

    async def law(client: EngineClient) -> None:
        pipe = Memory()
        sick = asyncio.create_task(follow(call_of(client, b"sick"), Memory(), broken))
        await follow(call_of(client, b"well"), pipe)
        assert pipe.data.decode() == text_of(b"well")
        with pytest.raises(ZeroDivisionError):
            await sick
        assert client.num_open == 0

    run(law, config_of("oracle:step_ms=2"))
