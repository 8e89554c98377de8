"""HTTP/1.1 as a load client needs it: kept-alive connections, bodies handed over as they arrive, with the time they did.

The time is taken when bytes are handed to us, before anything is done with them. Knows nothing of what is sent or answered.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

from penstock.errors import ConfigError

OnBody = Callable[[bytes, float], None]


class TransportError(Exception):
    """The server could not be reached, or the connection broke."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `path` comes before every route."""

    host: str
    port: int
    is_tls: bool
    path: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"


def address_of(url: str) -> Address:
    """Read a URL as people give it; a trailing /v1 is dropped."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no address of a server; write http://HOST:PORT")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{url!r} is no address of a server: it holds something other than plain ASCII")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(parts.hostname, port or (443 if is_tls else 80), is_tls, path)


@dataclass(slots=True)
class Response:
    status: int = 0
    headers: dict[str, str] | None = None


class Exchange:
    """One request under way on a connection."""

    __slots__ = ("done", "has_begun", "on_body", "response")

    def __init__(self, on_body: OnBody, done: "asyncio.Future[None]") -> None:
        self.on_body = on_body
        self.done = done
        self.response = Response(headers={})
        self.has_begun = False


class ClientConnection(asyncio.Protocol):
    """Carries one exchange after another. Broken once anything goes wrong: it is then never used again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.is_open = False
        self.num_exchanges = 0

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        if self._exchange is not None:
            self._exchange.has_begun = True
        try:
            self._parser.feed_data(data)
        except Exception as error:  # whatever the reader of a body raises ends its exchange, and only that
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self.fail(TransportError(f"unreadable answer: {cause or error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        exchange = self._exchange
        if exchange is not None and exchange.response.status and self._parser_ends_with_connection(exchange):
            self.on_message_complete()
        else:
            self.fail(
                TransportError(f"connection lost: {error}" if error else "the server closed the connection early")
            )

    def _parser_ends_with_connection(self, exchange: Exchange) -> bool:
        """A body with neither a length nor chunks ends when the connection does."""
        headers = exchange.response.headers or {}
        return "content-length" not in headers and "transfer-encoding" not in headers

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None and self._exchange.response.headers is not None:
            self._exchange.response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.on_body(body, self._now)

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None or 100 <= exchange.response.status < 200:
            self._exchange = exchange
            return
        if not self._parser.should_keep_alive():
            self.close()
        if not exchange.done.done():
            exchange.done.set_result(None)

    # What the client calls

    def send(self, data: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        self.num_exchanges += 1
        if self._transport is not None:
            self._transport.write(data)

    def fail(self, error: TransportError) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None and not exchange.done.done():
            exchange.done.set_exception(error)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


class Client:
    """A pool of connections to one server, as many as there are exchanges at once."""

    def __init__(
        self, address: Address, key: str = "", *, verify: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.address = address
        self.clock = clock
        self.num_connections = 0
        self._idle: list[ClientConnection] = []
        self._ssl = _tls(verify) if address.is_tls else None
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        if not authorization.isascii() or "\r\n" in key or "\n" in key:
            raise ConfigError("the API key holds something that no header can carry")
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._common = (
            f"host: {host}:{address.port}\r\nuser-agent: penstock-bench\r\naccept: */*\r\n"
            f"content-type: application/json\r\n{authorization}"
        )

    async def request(
        self, method: str, path: str, body: bytes, on_body: OnBody, on_sent: Callable[[float], None] | None = None
    ) -> Response:
        """Send, and hand over the body as it comes. Raises TransportError. A kept-alive connection that the server has
        closed meanwhile is replaced once, as long as it answered nothing.
        """
        head = f"{method} {self.address.path}{path} HTTP/1.1\r\n{self._common}content-length: {len(body)}\r\n\r\n"
        data = head.encode("ascii") + body
        while True:
            connection = await self._connection()
            exchange = Exchange(on_body, asyncio.get_running_loop().create_future())
            if on_sent is not None:
                on_sent(self.clock())
            connection.send(data, exchange)
            try:
                await exchange.done
            except TransportError:
                if connection.num_exchanges > 1 and not exchange.has_begun:
                    continue
                raise
            except BaseException:
                connection.fail(TransportError("given up"))
                with suppress(TransportError, asyncio.CancelledError, asyncio.InvalidStateError):
                    exchange.done.exception()
                raise
            if connection.is_open:
                self._idle.append(connection)
            return exchange.response

    async def _connection(self) -> ClientConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: ClientConnection(self.clock), self.address.host, self.address.port, ssl=self._ssl
            )
        except OSError as error:
            raise TransportError(f"cannot connect to {self.address.url}: {error}") from None
        self.num_connections += 1
        return made

    async def fetch(self, method: str, path: str, body: bytes = b"", timeout_s: float = 30.0) -> tuple[int, bytes]:
        """A whole answer: its status and body."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                response = await self.request(method, path, body, lambda data, _: parts.append(data))
        except TimeoutError:
            raise TransportError(f"{self.address.url}{path} has not answered within {timeout_s:g} s") from None
        return response.status, b"".join(parts)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
