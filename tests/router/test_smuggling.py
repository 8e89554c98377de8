"""Requests that two parsers might read differently never leave the router: refused, and the connection closed."""

import asyncio
import itertools
import random
import re

import pytest

from penstock.service.edge.headers import MAX_HEADER_BYTES
from tests.router.harness import Routed, ScriptedReplica, routed
from tests.router.test_relay import run

HIDDEN = b"POST /v1/hidden HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
BODY = b'{"model":"tiny"}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
HOST = b"Host: localhost"

LENGTHS = [b"+16", b"-1", b"0x10", b"16, 16", b"16 16", b"1_6", b"", b"\xd9\xa1", b"9" * 30, b"16;", b"16.0", b"1e1"]
CODINGS = [
    b"xchunked",
    b"chunked, identity",
    b"identity",
    b"chunked, chunked",
    b"gzip, chunked",
    b"chunked;a=b",
    b"\x0bchunked",
    b"chunke\xc4\x8f",
    b'"chunked"',
    b"",
]
NAMES = [b"Content-Length ", b" Content-Length", b"Content-Length\t", b"Content\x00-Length", b"Content-Length\x0b"]
SIZES = [b"+10", b"-1", b"0x10", b"10 ", b" 10", b"1_0", b"G", b"", b"f" * 17, b"10;\n", b"10;a\nb", b"10\n"]


def request(*lines: bytes, body: bytes = BODY, end: bytes = b"\r\n", first: bytes = b"") -> bytes:
    first = first or b"POST /v1/chat/completions HTTP/1.1"
    return end.join([first, *lines, b"", b""]) + body


def ambiguous() -> list[bytes]:
    """Each with another request where a parser that reads it otherwise would find one."""
    size = b"Content-Length: %d" % len(BODY)
    chunked = b"Transfer-Encoding: chunked"
    inner = CHUNKED + HIDDEN
    return [
        *(request(HOST, *order, body=inner) for order in itertools.permutations((size, chunked))),
        request(HOST, b"Content-Length: %d" % len(inner), chunked, body=inner),
        request(HOST, size, b"Content-Length: 3"),
        request(HOST, size, size),
        request(HOST, chunked, chunked, body=inner),
        request(HOST, chunked, b"Transfer-Encoding: identity", body=inner),
        *(request(HOST, b"Content-Length: " + value, body=BODY + HIDDEN) for value in LENGTHS),
        *(request(HOST, b"Transfer-Encoding: " + value, body=inner) for value in CODINGS),
        *(request(HOST, b"Transfer-Encoding: " + value, size, body=inner) for value in CODINGS),
        *(request(HOST, name + b": %d" % len(BODY), body=BODY + HIDDEN) for name in NAMES),
        *(request(HOST, chunked, body=one + b"\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN) for one in SIZES),
        request(HOST, chunked, body=b"10\r\n" + BODY + b"XX0\r\n\r\n" + HIDDEN),
        request(HOST, size, b"X-Folded: a\r\n b: c"),
        request(HOST, b"X-Folded: a\r\n\tTransfer-Encoding: chunked", size),
        request(HOST, size, b"X-Bad: a\x00b"),
        request(HOST, size, b"X-Bad: a\rTransfer-Encoding: chunked"),
        request(HOST, size, b"X Bad: a"),
        request(HOST, size, b": empty"),
        request(HOST, size, b"no colon at all"),
        request(HOST, size, end=b"\n"),
        request(HOST, b"Host: other", size),
        request(b"Host: evil", HOST, size),
        request(b"Host: evil", size),
        request(b"Host: localhost@evil", size),
        request(b"Host: localhost evil", size),
        request(size),
        *(
            request(HOST, size, first=b"POST " + target + b" HTTP/1.1")
            for target in (b"http://evil/v1/chat/completions", b"evil:80", b"*", b"/v1/a b", b"/v1/\x00", b"")
        ),
        *(
            request(HOST, size, first=b"POST /v1/chat/completions " + version)
            for version in (b"HTTP/2.0", b"HTTP/1.1x", b"http/1.1", b"HTTP/0.9", b"HTTP/11")
        ),
        request(HOST, chunked, body=inner, first=b"POST /v1/chat/completions HTTP/1.0"),
    ]


def variants(count: int) -> list[bytes]:
    """The same, cut, doubled, re-cased and with bytes in between: whatever comes of them, nothing hidden does."""
    draw = random.Random(17)
    cases, made = ambiguous(), []
    while len(made) < count:
        case = bytearray(draw.choice(cases))
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(case))
            match draw.randrange(4):
                case 0:
                    case[place:place] = draw.choice(
                        (b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b"\x0b", b";", b",", b"0")
                    )
                case 1:
                    del case[place]
                case 2:
                    case[place : place + 1] = case[place : place + 1].swapcase()
                case _:
                    end = place + draw.randrange(40)
                    case[place:place] = case[place:end]
        made.append(bytes(case))
    return made


async def sent(router: Routed, data: bytes) -> list[bytes]:
    """Statuses of all answers. What the router takes for the beginning of a request is ended by closing the connection."""
    router.connections.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    await router.until(lambda: bool(router.connections) and router.connections[0].transport is not None)
    (inbound,) = router.connections
    writer.write(data)
    await router.until(lambda: not inbound.is_open or (inbound.num_received == len(data) and inbound.is_idle))
    inbound.close_when_done()
    try:
        answer = await reader.read()
    except ConnectionError:
        answer = b""
    writer.close()
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)


def test_what_is_ambiguous_is_refused_and_nothing_hidden_in_it_gets_through():
    async def law():
        replica = ScriptedReplica("a")
        async with routed(replica) as router:
            for case in ambiguous():
                before = len(replica.asked)
                answers = await sent(router, case)
                assert b"200" not in answers, case
                assert len(replica.asked) == before, case
            assert (await router.post({"model": "tiny"}))[0] == 200, "others are not affected"

    run(law)


@pytest.mark.parametrize("num_cases", [400, pytest.param(4000, marks=pytest.mark.slow)])
def test_as_many_requests_reach_a_replica_as_are_answered(num_cases):
    """However a request is bent: what one side counts, the other does. One whose body never ends is refused with 503 when its
    connection is closed.
    """

    async def law():
        replica = ScriptedReplica("a")
        async with routed(replica) as router:
            for case in variants(num_cases):
                before = len(replica.asked)
                answers = await sent(router, case)
                assert len(replica.asked) - before == answers.count(b"200"), case
                assert set(answers) <= {b"200", b"400", b"403", b"404", b"405", b"413", b"431", b"503"}, case

    run(law)


@pytest.mark.parametrize(
    "begun",
    [
        b"POST / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\nx: ",
        request(HOST, b"Transfer-Encoding: chunked", body=CHUNKED[:-2]) + b"x: ",
    ],
    ids=["name", "value", "trailer"],
)
def test_what_never_becomes_a_whole_header_is_refused_before_much_of_it_is_read(begun):
    async def law():
        async with routed(ScriptedReplica("a")) as router:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(begun)
            await router.until(lambda: bool(router.connections) and router.connections[0].num_received == len(begun))
            writer.write(b"y" * (MAX_HEADER_BYTES + 1))
            assert b" 431 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), 5.0)
            writer.close()

    run(law)
