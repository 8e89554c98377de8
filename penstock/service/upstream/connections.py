"""A pool of kept-alive connections to a server. HTTP/1.1, one exchange after another on each.

An exchange is told of an answer as it comes: head, parts of the body, end, or that the connection broke. The parts that arrived
in one read are handed over as one.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import httptools

from penstock.service.upstream.endpoint import Endpoint

CONNECT_S = 2.0
MAX_IDLE = 256
"""Connections kept for later, unless told otherwise."""
IDLE_S = 30.0
"""A connection unused for longer is not trusted to be open."""

FRAMING = (b"content-length", b"transfer-encoding")
"""A body with neither ends when its connection does."""

Headers = list[tuple[bytes, bytes]]


class UpstreamExchange(Protocol):
    """One request under way, as its connection sees it."""

    def on_head(self, status: int, headers: Headers) -> None: ...

    def on_part(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_broken(self, message: str) -> None:
        """Nothing more will come."""


@dataclass(slots=True, eq=False)
class UpstreamConnection(asyncio.Protocol):
    """Carries one exchange at a time. Once anything goes wrong it is closed and never used again."""

    _pool: "ConnectionPool"
    arrived_s: float = 0.0
    """When the last bytes were handed to us, before anything was done with them."""
    transport: Any = None
    is_open: bool = False
    has_begun: bool = False
    """Something of the present answer has arrived."""
    num_exchanges: int = 0
    idle_since_s: float = 0.0
    _parser: Any = None
    _exchange: UpstreamExchange | None = None
    _headers: Headers = field(default_factory=list)
    _parts: list[bytes] = field(default_factory=list)
    _status: int = 0

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.arrived_s = time.monotonic()
        self.has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"unreadable answer: {error.__context__ or error}")
            return
        if self._parts:
            self._hand_over()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if error is None and self._status >= 200 and not any(name in FRAMING for name, _ in self._headers):
            exchange.on_end()
        else:
            exchange.on_broken(f"connection lost: {error}" if error else "the server closed the connection early")

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status >= 200 and self._exchange is not None:
            self._exchange.on_head(self._status, self._headers)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:
            self._headers = []
            return
        if self._parts:
            self._hand_over()
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._parser.should_keep_alive():
            self._pool.give_back(self)
        else:
            self.close()
        exchange.on_end()

    def _hand_over(self) -> None:
        parts, self._parts = self._parts, []
        if self._exchange is not None:
            self._exchange.on_part(parts[0] if len(parts) == 1 else b"".join(parts))

    # What an exchange calls

    def send(self, data: bytes, exchange: UpstreamExchange) -> None:
        self._exchange = exchange
        self._headers = []
        self._status = 0
        self.has_begun = False
        self.num_exchanges += 1
        self.transport.write(data)

    def close(self) -> None:
        """Give up whatever is under way; its exchange is not notified."""
        self.is_open = False
        self._exchange = None
        if self.transport is not None:
            self.transport.abort()

    def abandon(self, exchange: UpstreamExchange) -> None:
        """Give this exchange up. One that has ended has left the connection to another, which goes on."""
        if self._exchange is exchange:
            self.close()

    def _break(self, message: str) -> None:
        exchange = self._exchange
        self.close()
        if exchange is not None:
            exchange.on_broken(message)


class ConnectionPool:
    """Connections to one server, as many as there are exchanges at once."""

    def __init__(
        self, endpoint: Endpoint, tls: Callable[[], ssl.SSLContext] | None = None, max_idle: int = MAX_IDLE
    ) -> None:
        """`tls` says whom to trust and what to show over https, in place of what the system trusts."""
        self.endpoint = endpoint
        self._lines = f" HTTP/1.1\r\nhost: {endpoint.authority}\r\n".encode()
        """What every request there has after its path."""
        self._idle: list[UpstreamConnection] = []
        self._max_idle = max_idle
        self._tls = (tls or cache(ssl.create_default_context)) if endpoint.is_tls else None
        if self._tls is not None:
            self._tls()  # files that cannot be used are told of at once

    def idle(self) -> UpstreamConnection | None:
        """A connection that is open as far as we know: one that broke a moment ago is closing, though nobody has been told."""
        least_s = time.monotonic() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            is_open = connection.is_open and not connection.transport.is_closing()
            if is_open and connection.idle_since_s >= least_s:
                return connection
            connection.close()
        return None

    async def connect(
        self, timeout_s: float | None = CONNECT_S, connected: socket.socket | None = None
    ) -> UpstreamConnection:
        """A fresh one, over a socket that is connected already if there is one. Raises OSError (TimeoutError is one)."""
        host = self.endpoint.host
        where: dict[str, Any] = {"host": host, "port": self.endpoint.port}
        if connected is not None:
            where = {"sock": connected, "server_hostname": host if self._tls is not None else None}
        async with asyncio.timeout(timeout_s):
            tls = self._tls() if self._tls is not None else None
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: UpstreamConnection(self), ssl=tls, **where
            )
        return made

    def head(self, method: str, target: str) -> bytes:
        """How every request there begins; `target` is latin-1."""
        return f"{method} {self.endpoint.path}{target}".encode("latin-1") + self._lines

    def request(self, method: str, path: str, headers: bytes = b"", body: bytes | None = None) -> bytes:
        """A question of our own. `headers` are lines that each end in CRLF."""
        if body is not None:
            headers += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        return self.head(method, path) + headers + b"\r\n" + (body or b"")

    def give_back(self, connection: UpstreamConnection) -> None:
        if connection.is_open and len(self._idle) < self._max_idle:
            connection.idle_since_s = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Fetched(NamedTuple):
    status: int
    body: bytes
    headers: dict[bytes, bytes]


class Fetch:
    """A whole answer to a small question: probes and lists of models."""

    def __init__(self, limit_bytes: int = 4 << 20) -> None:
        self.done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._room = limit_bytes

    def on_head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers

    def on_part(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room >= 0:
            self._parts.append(data)

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(Fetched(self._status, b"".join(self._parts), dict(self._headers)))

    def on_broken(self, message: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(message))


async def fetch(pool: ConnectionPool, data: bytes, timeout_s: float) -> Fetched:
    """Raises OSError where there is no answer in time."""
    async with asyncio.timeout(timeout_s):
        while True:
            connection = pool.idle()
            is_fresh = connection is None
            connection = connection or await pool.connect()
            exchange = Fetch()
            connection.send(data, exchange)
            try:
                return await exchange.done
            except ConnectionError:
                if is_fresh or connection.has_begun:
                    raise
            except BaseException:
                connection.abandon(exchange)
                raise
