"""A router on a real socket, in front of replicas whose every word is scripted: they refuse, fail, stall and die on cue."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.service import marks
from penstock.service.config import ListenConfig, RouterConfig
from penstock.service.gateway.gateway import Gateway
from penstock.service.kv_events import OFFER_HEADER, BlockOffer
from penstock.service.router.app import RouterApp
from penstock.service.router.fleet import ReplicaState
from penstock.service.router.proxy.client import InboundConnection
from tests.machine import PATIENCE_S

Handler = Callable[["ScriptedReplica", dict, bytes, asyncio.StreamWriter], Awaitable[None]]


def head(status: int = 200, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}".encode()


def whole(body: bytes, status: int = 200, **headers: str) -> bytes:
    return head(status, content_type="application/json", content_length=str(len(body)), **headers) + b"\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answer(replica: "ScriptedReplica", headers: dict, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Says who it is."""
    text = json.dumps(
        {"by": replica.name, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    ).encode()
    writer.write(whole(text, x_request_id=headers.get("x-request-id", "")))


WORDS = [f"w{number} " for number in range(8)]


def telling(die_after: int | None = None, stall: bool = False, split: bool = False) -> Handler:
    """Streams eight words, a token each, marked for a router; goes on where told to; dies after so many words."""

    async def handler(replica: "ScriptedReplica", headers: dict, body: bytes, writer: asyncio.StreamWriter) -> None:
        num_shown = 0
        is_resumed = "x-penstock-resume" in headers
        if is_resumed:
            size = int(headers["x-penstock-resume"])
            tokens = marks.tokens_of([b":t " + body[:size]])
            num_shown = len(tokens.get(0, []))
            json.loads(body[size:])
        kind = "text/event-stream; charset=utf-8"
        writer.write(head(content_type=kind, transfer_encoding="chunked", x_penstock_relay="1") + b"\r\n")
        if not is_resumed:
            writer.write(chunk(b"data: begin\n\n:t \n\n"))
        for number, word in enumerate(WORDS[num_shown:]):
            if number == die_after:
                if split:  # half an event has left: it must not be seen
                    writer.write(chunk(b"data: half of a w"))
                await writer.drain()
                if stall:
                    await replica.released.wait()
                writer.transport.abort()
                return
            token = num_shown + number
            writer.write(chunk(b"data: %b\n\n:t 0=%d\n\n" % (word.encode(), token)))
            await writer.drain()
        writer.write(chunk(b"data: [DONE]\n\n:u 5 8 0\n\n"))
        writer.write(b"0\r\n\r\n")

    return handler


@dataclass
class ScriptedReplica:
    name: str
    handler: Handler = answer
    is_ready: bool = True
    asked: list[bytes] = field(default_factory=list)
    heads: list[dict] = field(default_factory=list)
    port: int = 0
    server: asyncio.Server | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    writers: set = field(default_factory=set)
    model: str = "tiny"
    offer: BlockOffer | None = None
    adapters: dict[str, bool] = field(default_factory=dict)
    """By name, whether it lies on the device."""
    is_foreign: bool = False
    """As vLLM and llama.cpp: health at /health, no marks, no headers of ours."""

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As a process dies: nobody listens, every connection is reset."""
        self.server.close()
        for writer in tuple(self.writers):
            writer.transport.abort()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while True:
                text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = text.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = first.split()[1]
                if path == "/readyz" and self.is_foreign:
                    writer.write(whole(b"{}", 404))
                elif path in ("/readyz", "/health"):
                    writer.write(whole(b'{"status": "said"}', 200 if self.is_ready else 503))
                elif path == "/v1/models":
                    data = [{"id": self.model}]
                    for name, is_loaded in self.adapters.items():
                        data.append({"id": name, "status": {"value": "loaded" if is_loaded else "unloaded"}})
                    writer.write(whole(json.dumps({"data": data}).encode()))
                elif path == "/metrics":
                    offered = {} if self.offer is None else {OFFER_HEADER.decode(): self.offer.encode().decode()}
                    writer.write(whole(b"vllm:num_requests_waiting 0\n", **offered))
                else:
                    self.asked.append(body)
                    self.heads.append(headers)
                    await self.handler(self, headers, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


class WatchedConnection(InboundConnection):
    """Says how much of what was sent it has read, and when it has nothing more to do."""

    num_received = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.num_received += len(data)

    @property
    def is_idle(self) -> bool:
        return not self._is_answering and not self._waiting


@dataclass
class Routed:
    app: RouterApp
    port: int
    replicas: list[ScriptedReplica]
    connections: list[WatchedConnection] = field(default_factory=list)
    """In the order in which they came."""

    async def post(self, body: dict, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, dict, bytes]:
        return await ask(self.port, json.dumps(body).encode(), path, **headers)

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_true():
                await asyncio.sleep(0.002)


async def ask(
    port: int, body: bytes, path: str = "/v1/chat/completions", method: str = "POST", **headers: str
) -> tuple[int, dict, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body
    )
    try:
        return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict, bytes]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    if headers.get("transfer-encoding") != "chunked":
        return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return int(first.split()[1]), headers, b"".join(parts)


@asynccontextmanager
async def routed(
    *replicas: ScriptedReplica, listen: ListenConfig | None = None, gateway: Gateway | None = None, **settings
) -> AsyncIterator[Routed]:
    for replica in replicas:
        await replica.open()
    urls = {replica.name: f"http://127.0.0.1:{replica.port}" for replica in replicas}
    awaited = [replica.name for replica in replicas if replica.is_ready]
    try:
        async with _opened(urls, awaited, listen, settings, gateway) as made:
            made.replicas = list(replicas)
            yield made
    finally:
        for replica in replicas:
            replica.released.set()
            await replica.kill()


@asynccontextmanager
async def opened_router(*urls: str, gateway: Gateway | None = None, **settings) -> AsyncIterator[Routed]:
    """In front of real servers."""
    named = {f"r{number}": url for number, url in enumerate(urls)}
    async with _opened(named, list(named), None, settings, gateway) as made:
        yield made


@asynccontextmanager
async def _opened(
    urls: dict[str, str],
    awaited: list[str],
    listen: ListenConfig | None,
    settings: dict,
    gateway: Gateway | None = None,
) -> AsyncIterator[Routed]:
    settings = {"probe_s": 0.1, "slow_start_s": 0.0, "policy": "round-robin", "wait_s": 5.0} | settings
    app = RouterApp(listen or ListenConfig(), RouterConfig(**settings), gateway=gateway)
    for name, url in urls.items():
        app.add_replica(name, url)
    connections: list[WatchedConnection] = []

    def accepted() -> WatchedConnection:
        connections.append(WatchedConnection(app))
        return connections[-1]

    server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0)
    app.start()
    made = Routed(app, server.sockets[0].getsockname()[1], [], connections)
    try:
        await made.until(lambda: all(app.fleet.get(name).state is ReplicaState.READY for name in awaited))
        yield made
    finally:
        server.close()
        await app.close()


SHOWN = b"data: begin\n\n" + b"".join(b"data: %b\n\n" % word.encode() for word in WORDS) + b"data: [DONE]\n\n"
"""What the client of a telling replica sees, however often the replica changed."""
