"""Engines say what their caches hold, in a stream that survives gaps and restarts: what the router expects is what is found."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service import kv_events
from penstock.service.router.fleet import LiveFleet, ReplicaState
from penstock.service.router.probe import BlockExchange
from tests.machine import PATIENCE_S
from tests.router.harness import Routed, ask, opened_router
from tests.router.test_relay import run
from tests.server.serving import Server, serving

BLOCK = 16


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """Caches so small that prompts are forgotten all the time."""
    with serving("--num-blocks", "80") as one, serving("--num-blocks", "80") as two:
        yield [one, two]


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.binary(min_size=8, max_size=8), max_size=5)), max_size=8), st.data()
)
def test_frames_are_read_as_they_were_written_however_they_are_cut(asked, data):
    written = b"".join(
        kv_events.frame(is_whole, number, b"".join(hashes), b"".join(hashes[:2]))
        for number, (is_whole, hashes) in enumerate(asked)
    )
    reader, found, rest = kv_events.FrameReader(), [], written
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += reader.feed(rest[:size])
        rest = rest[size:]
    assert [(one.is_whole, one.published, one.removed) for one in found] == [
        (is_whole, tuple(hashes), tuple(hashes[:2])) for is_whole, hashes in asked
    ]
    with pytest.raises(ValueError, match="no stream"):
        kv_events.FrameReader().feed(b"HTTP/1.1 200 OK\r\n")


def test_a_frame_that_does_not_follow_on_the_last_ends_the_stream():
    async def law():
        fleet = LiveFleet()
        replica = fleet.add("a", "http://a")
        exchange = BlockExchange(fleet, replica)
        exchange.on_head(200, [])
        one, two, three = b"1" * 8, b"2" * 8, b"3" * 8
        exchange.on_part(kv_events.frame(True, 7, one) + kv_events.frame(False, 8, two, one))
        assert replica.prefixes == {two}
        exchange.on_part(kv_events.frame(False, 10, three))
        assert exchange.done.result().status == 200
        assert replica.prefixes == {two}

    run(law)


async def held(server: Server) -> set[bytes]:
    """What a server says that its cache holds, at the moment of asking."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"GET /kv/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    frames = kv_events.FrameReader()
    found: list[kv_events.Frame] = []
    while not found:
        size = int(await reader.readuntil(b"\r\n"), 16)
        found = frames.feed(await reader.readexactly(size))
        await reader.readexactly(2)
    writer.close()
    return set(found[0].published)


async def settled(router: Routed, servers: list[Server]) -> None:
    """The router knows what the servers know."""
    async with asyncio.timeout(PATIENCE_S):
        for number, server in enumerate(servers):
            while await held(server) != router.app.fleet.get(f"r{number}").prefixes:
                await asyncio.sleep(0.01)


async def asked(router: Routed, prompt: str) -> tuple[int, int]:
    """Tokens of a prompt that the router expected in a cache, and tokens that were found there."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "temperature": 0}
    status, headers, answer = await ask(router.port, json.dumps(body).encode())
    assert status == 200, answer
    blocks = dict(part.strip().partition("=")[::2] for part in headers["x-penstock-route"].split(";"))["blocks"]
    cached = json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(blocks.partition("/")[0]) * BLOCK, cached


def test_what_is_expected_in_a_cache_is_found_there(servers):
    async def law():
        async with opened_router(*(server.url for server in servers), policy="prefix-reported") as router:
            draw = random.Random(7)
            stems = ["".join(draw.choices("abcdefgh ", k=200)) for _ in range(6)]
            num_expected = 0
            for _ in range(60):
                await settled(router, servers)
                stem = draw.choice(stems)
                prompt = stem[: draw.randrange(20, 200)] + draw.choice(("", "x", "another end"))
                expected, found = await asked(router, prompt)
                assert expected == found, prompt
                num_expected += expected
            assert num_expected > 1000

    run(law)


def test_a_gap_and_an_engine_that_starts_anew_are_mended(servers):
    async def law():
        async with opened_router(*(server.url for server in servers), policy="prefix-reported") as router:
            await asked(router, "a prompt of some length, so that it takes more than one block of the cache")
            await settled(router, servers)
            replica = router.app.fleet.get("r0")
            replica.prefixes = {b"nonsense"}
            os.kill(servers[0].engine_pid, signal.SIGKILL)
            while await held(servers[0]):
                await asyncio.sleep(0.01)
            await router.until(lambda: replica.state is ReplicaState.READY and b"nonsense" not in replica.prefixes)
            for _ in range(6):
                await settled(router, servers)
                expected, found = await asked(router, "a prompt of some length, so that it takes more than one block")
                assert expected == found

    run(law)
