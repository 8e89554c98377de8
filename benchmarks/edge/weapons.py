"""The attacks themselves: what a hostile client sends, and a table of all of them.

An attack is a coroutine over an `Attacker`, which counts what it sends and what comes back, and ends when its time is up.
"""

import asyncio
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmarks.edge.served import answer, post

LIVEZ = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
LONG_TEXT = 15 << 20
"""Just within what a body may have."""
FAULTS = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError)


class Attacker:
    """One hostile client with any number of connections."""

    def __init__(self, host: str, port: int, key: str, seconds: float) -> None:
        self.host, self.port, self.key = host, port, key
        self.num_bytes = 0
        self.answers: Counter[str] = Counter()
        """By status; `cut` where the connection ended without one."""
        self._seconds = seconds
        self._end_s = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end_s

    async def run(self, method: "Method") -> None:
        self._end_s = time.monotonic() + self._seconds
        with suppress(TimeoutError):
            await asyncio.wait_for(method(self), self._seconds + 1.0)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.num_bytes += len(data)
        writer.write(data)
        await writer.drain()

    async def ask_for_ever(self, make: Callable[[], bytes], *, is_kept: bool = True) -> None:
        """One request after another, each answer read."""
        connection = None
        while not self.is_over:
            try:
                connection = connection or await self.open()
                await self.send(connection[1], make())
                status, _ = await answer(connection[0])
                self.answers[str(status)] += 1
            except FAULTS:
                self.answers["cut"] += 1
                connection = None
                await asyncio.sleep(0.01)
            if not is_kept and connection is not None:
                connection[1].close()
                connection = None

    async def all_ask(self, num: int, make: Callable[[], bytes], *, is_kept: bool = True) -> None:
        await asyncio.gather(*(self.ask_for_ever(make, is_kept=is_kept) for _ in range(num)))

    async def repeat(self, num: int, path: str, body: Any) -> None:
        """The same call, on so many connections."""
        request = post(path, body if isinstance(body, bytes) else json.dumps(body).encode(), self.key)
        await self.all_ask(num, lambda: request)


Method = Callable[[Attacker], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    method: Method
    has_key: bool


ATTACKS: dict[str, Attack] = {}


def attack(*, has_key: bool) -> Callable[[Method], Method]:
    def add(method: Method) -> Method:
        ATTACKS[method.__name__.replace("_", "-")] = Attack(method, has_key)
        return method

    return add


# Without a key


@attack(has_key=False)
async def nothing(attacker: Attacker) -> None:
    """What the measurement itself sees."""
    while not attacker.is_over:
        await asyncio.sleep(0.1)


@attack(has_key=False)
async def pipelined_never_read(attacker: Attacker) -> None:
    """Requests as fast as the socket takes them; no answer is read."""

    async def one() -> None:
        while not attacker.is_over:
            try:
                reader, writer = await attacker.open()
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                while not attacker.is_over:
                    await attacker.send(writer, LIVEZ * 500)
            except FAULTS:
                attacker.answers["cut"] += 1
                await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(4)))


@attack(has_key=False)
async def pipelined_assets_never_read(attacker: Attacker) -> None:
    """One socket asks for the web app's largest file over and over, and reads nothing."""
    reader, writer = await attacker.open()
    await attacker.send(writer, b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: text/html\r\n\r\n")
    _, page = await answer(reader)
    paths = re.findall(rb"/assets/[^\"]+", page)
    request = b"".join(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path for path in paths) * 12
    while not attacker.is_over:
        try:
            reader, writer = await attacker.open()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            while not attacker.is_over:
                await attacker.send(writer, request)
        except FAULTS:
            attacker.answers["cut"] += 1
            await asyncio.sleep(0.01)


@attack(has_key=False)
async def half_bodies_without_a_key(attacker: Attacker) -> None:
    """Bodies of 7 MiB that are announced, sent but for their end, and held."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (7 << 20)
    held = []
    for _ in range(150):
        with suppress(*FAULTS, TimeoutError):
            _, writer = await attacker.open()
            held.append(writer)
            await asyncio.wait_for(attacker.send(writer, head + b"a" * ((7 << 20) - 1)), 1.0)
        if attacker.is_over:
            break
    while not attacker.is_over:
        await asyncio.sleep(0.1)
    attacker.answers["held"] = len(held)


@attack(has_key=False)
async def pipelined_a_little(attacker: Attacker) -> None:
    """Fifteen requests at a time, answers read: within what is allowed, on 32 connections."""

    async def one() -> None:
        reader, writer = await attacker.open()
        while not attacker.is_over:
            await attacker.send(writer, LIVEZ * 15)
            for _ in range(15):
                status, _ = await answer(reader)
                attacker.answers[str(status)] += 1

    await asyncio.gather(*(one() for _ in range(32)))


@attack(has_key=False)
async def keep_alive_flood(attacker: Attacker) -> None:
    await attacker.all_ask(64, lambda: LIVEZ)


@attack(has_key=False)
async def connections_opened_and_dropped(attacker: Attacker) -> None:
    await attacker.all_ask(32, lambda: LIVEZ, is_kept=False)


@attack(has_key=False)
async def silent_connections(attacker: Attacker) -> None:
    held = [await attacker.open() for _ in range(1000)]
    while not attacker.is_over:
        await asyncio.sleep(0.1)
    attacker.answers["held"] = len(held)


@attack(has_key=False)
async def headers_byte_by_byte(attacker: Attacker) -> None:
    held = [await attacker.open() for _ in range(256)]
    letters = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-filler: " + b"a" * 100_000
    for letter in letters:
        open_ones = [writer for _, writer in held if not writer.is_closing()]
        attacker.answers["held"], attacker.answers["cut"] = len(open_ones), len(held) - len(open_ones)
        for writer in open_ones:
            with suppress(*FAULTS):
                await attacker.send(writer, bytes([letter]))
        await asyncio.sleep(0.02)
        if attacker.is_over:
            break


@attack(has_key=False)
async def long_headers(attacker: Attacker) -> None:
    line = b"x-filler: " + b"a" * 60_000 + b"\r\n"
    await attacker.all_ask(16, lambda: b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + line + b"\r\n")


@attack(has_key=False)
async def not_http(attacker: Attacker) -> None:
    await attacker.all_ask(32, lambda: b"\x16\x03\x01\x02\x00" + b"\xff" * 400 + b"\r\n\r\n", is_kept=False)


@attack(has_key=False)
async def large_body_without_a_key(attacker: Attacker) -> None:
    await attacker.repeat(8, "/v1/completions", {"prompt": "a" * LONG_TEXT})


@attack(has_key=False)
async def endless_body_without_a_key(attacker: Attacker) -> None:
    """A chunked body that never ends, to a route that wants a key."""

    async def one() -> None:
        while not attacker.is_over:
            try:
                _, writer = await attacker.open()
                head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
                await attacker.send(writer, head)
                while not attacker.is_over:
                    await attacker.send(writer, b"10000\r\n" + b"a" * 65536 + b"\r\n")
            except FAULTS:
                attacker.answers["cut"] += 1
                await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(8)))


@attack(has_key=False)
async def guessed_keys(attacker: Attacker) -> None:
    numbers = count()
    body = b'{"prompt": "a"}'
    await attacker.all_ask(32, lambda: post("/v1/completions", body, f"guess-{next(numbers):012d}"))


# With a key: texts and bodies


@attack(has_key=True)
async def long_text_to_tokenize(attacker: Attacker) -> None:
    await attacker.repeat(8, "/tokenize", {"prompt": "a" * LONG_TEXT})


@attack(has_key=True)
async def long_text_to_complete(attacker: Attacker) -> None:
    await attacker.repeat(8, "/v1/completions", {"prompt": "word " * (LONG_TEXT // 5)})


@attack(has_key=True)
async def long_text_to_chat(attacker: Attacker) -> None:
    await attacker.repeat(
        8, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a1" * (LONG_TEXT // 2)}]}
    )


@attack(has_key=True)
async def long_texts_with_quotes(attacker: Attacker) -> None:
    """No run between two quotes is long: the whole body has to be read to see that its text is."""
    text = r"word \u00e9 \" " * 500_000
    await attacker.repeat(8, "/v1/completions", ('{"prompt": "' + text + '"}').encode())


@attack(has_key=True)
async def longest_texts_that_may_be(attacker: Attacker) -> None:
    """As long as a text may be before it is refused by its length alone, and dear to tokenize."""
    await attacker.repeat(16, "/tokenize", {"prompt": "aAbB" * 50_000})


@attack(has_key=True)
async def many_prompts(attacker: Attacker) -> None:
    await attacker.repeat(8, "/v1/completions", {"prompt": ["word " * 1500] * 2048, "max_tokens": 1})


@attack(has_key=True)
async def many_texts_to_embed(attacker: Attacker) -> None:
    await attacker.repeat(8, "/v1/embeddings", {"input": ["word " * 1500] * 2048})


@attack(has_key=True)
async def a_million_names(attacker: Attacker) -> None:
    body = b'{"prompt": "a", ' + b",".join(b'"k%d": 1' % number for number in range(900_000)) + b"}"
    await attacker.repeat(8, "/v1/completions", body)


@attack(has_key=True)
async def two_million_ids(attacker: Attacker) -> None:
    await attacker.repeat(8, "/detokenize", b'{"tokens": [' + b",".join([b"17"] * 2_000_000) + b"]}")


@attack(has_key=True)
async def half_a_million_ids(attacker: Attacker) -> None:
    """Within what a body may hold."""
    await attacker.repeat(8, "/detokenize", b'{"tokens": [' + b",".join([b"17"] * 500_000) + b"]}")


@attack(has_key=True)
async def nested_deeply(attacker: Attacker) -> None:
    depth = 500_000
    await attacker.repeat(8, "/v1/completions", b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}")


@attack(has_key=True)
async def many_biases(attacker: Attacker) -> None:
    bias = {str(number): 1 for number in range(40_000)}
    await attacker.repeat(16, "/v1/completions", {"prompt": "a", "max_tokens": 1, "logit_bias": bias})


@attack(has_key=True)
async def many_messages(attacker: Attacker) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": "a"} for number in range(20_000)]
    await attacker.repeat(8, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})


@attack(has_key=True)
async def many_stops(attacker: Attacker) -> None:
    stops = [f"stop {number}" for number in range(100_000)]
    await attacker.repeat(8, "/v1/completions", {"prompt": "a", "max_tokens": 1, "stop": stops})


@attack(has_key=True)
async def names_with_control_characters(attacker: Attacker) -> None:
    body = {"prompt": "a", "max_tokens": 1, "a\n": 1, "b\r\nset-cookie: c": 2, "\x00": 3}
    await attacker.repeat(16, "/v1/completions", body)


# With a key: places and readers


@attack(has_key=True)
async def bodies_byte_by_byte(attacker: Attacker) -> None:
    """Requests that announce a body and send a byte of it a second: do they take places?"""
    held = [await attacker.open() for _ in range(1400)]
    head = post("/v1/completions", b" " * 1000, attacker.key)[:-1000]
    for _, writer in held:
        with suppress(*FAULTS):
            await attacker.send(writer, head)
    while not attacker.is_over:
        for _, writer in held:
            with suppress(*FAULTS):
                await attacker.send(writer, b" ")
        await asyncio.sleep(1.0)
    attacker.answers["held"] = len(held)


@attack(has_key=True)
async def streams_nobody_reads(attacker: Attacker) -> None:
    body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True, "n": 4, "logprobs": 5}
    request = post("/v1/completions", json.dumps(body).encode(), attacker.key)
    held = []
    for _ in range(32):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((attacker.host, attacker.port))
        client.sendall(request)
        attacker.num_bytes += len(request)
        held.append(client)
    while not attacker.is_over:
        await asyncio.sleep(0.1)
    attacker.answers["held"] = len(held)


@attack(has_key=True)
async def answers_nobody_waits_for(attacker: Attacker) -> None:
    """Calls begun and left at once."""
    body = {"prompt": "word " * 1000, "max_tokens": 2000, "ignore_eos": True}
    request = post("/v1/completions", json.dumps(body).encode(), attacker.key)

    async def one() -> None:
        while not attacker.is_over:
            with suppress(*FAULTS):
                _, writer = await attacker.open()
                await attacker.send(writer, request)
                attacker.answers["left"] += 1
                writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(16)))


@attack(has_key=True)
async def many_choices(attacker: Attacker) -> None:
    body = {"prompt": ["a", "b", "c", "d"], "n": 128, "max_tokens": 200, "ignore_eos": True, "stream": True}
    await attacker.repeat(8, "/v1/completions", body)


@attack(has_key=True)
async def long_prompts(attacker: Attacker) -> None:
    """Honest work, as much as fits: the longest prompts there are, each of its own."""
    numbers = count()

    def make() -> bytes:
        body = {"prompt": [1000 + next(numbers) % 1000, *[17] * 8000], "max_tokens": 1}
        return post("/v1/completions", json.dumps(body).encode(), attacker.key)

    await attacker.all_ask(32, make)


# With a key: grammars, pages and stores


@attack(has_key=True)
async def hostile_regexes(attacker: Attacker) -> None:
    numbers = count()

    def make() -> bytes:
        regex = f"(a{{1,500}}{next(numbers)}b?){{1,500}}(c+)+(d|dd|ddd){{1,300}}$"
        body = {"prompt": "a", "max_tokens": 1, "guided_regex": regex}
        return post("/v1/completions", json.dumps(body).encode(), attacker.key)

    await attacker.all_ask(8, make)


@attack(has_key=True)
async def large_schemas(attacker: Attacker) -> None:
    numbers = count()

    def make() -> bytes:
        first = next(numbers)
        schema = {"enum": [f"{first} value number {number}" for number in range(50_000)]}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        messages = [{"role": "user", "content": "a"}]
        body = {"messages": messages, "max_tokens": 1, "response_format": form}
        return post("/v1/chat/completions", json.dumps(body).encode(), attacker.key)

    await attacker.all_ask(4, make)


@attack(has_key=True)
async def metrics_flood(attacker: Attacker) -> None:
    request = f"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {attacker.key}\r\n\r\n".encode()
    await attacker.all_ask(16, lambda: request)


@attack(has_key=True)
async def uploads(attacker: Attacker) -> None:
    mark = b"--xx\r\ncontent-disposition: form-data; name="
    form = (
        mark
        + b'"purpose"\r\n\r\nbatch\r\n'
        + mark
        + b'"file"; filename="f"\r\n\r\n'
        + b"a" * (8 << 20)
        + b"\r\n--xx--\r\n"
    )
    request = post("/v1/files", form, attacker.key).replace(b"application/json", b"multipart/form-data; boundary=xx", 1)
    await attacker.all_ask(8, lambda: request)


@attack(has_key=True)
async def conversations_kept(attacker: Attacker) -> None:
    items = [{"type": "message", "role": "user", "content": "a" * 1000} for _ in range(2000)]
    await attacker.repeat(8, "/v1/conversations", {"items": items})


@attack(has_key=True)
async def calculations(attacker: Attacker) -> None:
    """Tools of the web app, each run in a process of its own."""
    await attacker.repeat(8, "/app/v1/simulate", {"flags": {"rate": 50, "requests": 20_000}})
