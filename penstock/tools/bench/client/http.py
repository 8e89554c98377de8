"""A server as a load client asks it: bodies handed over as they arrive, with the time they did."""

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import cache

from penstock.errors import ConfigError
from penstock.service.upstream.connections import ConnectionPool, Fetch, Fetched, UpstreamConnection
from penstock.service.upstream.endpoint import Endpoint

OnBody = Callable[[bytes, float], None]

MAX_USERS = 1 << 16
"""Whose connections are all kept from one request to the next."""


class TimedExchange(Fetch):
    """One request under way on a connection. Whatever the reader of its body raises ends it, and only it."""

    def __init__(self, connection: UpstreamConnection, on_body: OnBody) -> None:
        super().__init__()
        self._connection = connection
        self._on_body = on_body

    def on_part(self, data: bytes) -> None:
        try:
            self._on_body(data, self._connection.arrived_s)
        except Exception as error:
            self._connection.close()
            self.on_broken(f"unreadable answer: {error}")


class Client:
    """Asks one server."""

    def __init__(self, address: Endpoint, key: str = "", *, verify: bool = True) -> None:
        self.address = address
        self.clock = time.monotonic
        self._pool = ConnectionPool(address, None if verify else cache(_trusting), MAX_USERS)
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        if not authorization.isascii() or "\r" in key or "\n" in key:
            raise ConfigError("the API key holds something that no header can carry")
        self._common = (
            f"host: {address.authority}\r\nuser-agent: penstock-bench\r\naccept: */*\r\n"
            f"content-type: application/json\r\n{authorization}"
        )

    async def request(
        self, method: str, path: str, body: bytes, on_body: OnBody, on_sent: Callable[[float], None] | None = None
    ) -> Fetched:
        """Send, and hand over the body as it comes. Raises ConnectionError. A kept-alive connection that the server has
        closed meanwhile is replaced, as long as it answered nothing.
        """
        head = f"{method} {self.address.path}{path} HTTP/1.1\r\n{self._common}content-length: {len(body)}\r\n\r\n"
        data = head.encode("ascii") + body
        while True:
            connection = self._pool.idle()
            is_fresh = connection is None
            connection = connection or await self._connect()
            exchange = TimedExchange(connection, on_body)
            if on_sent is not None:
                on_sent(self.clock())
            connection.send(data, exchange)
            try:
                return await exchange.done
            except ConnectionError:
                if is_fresh or connection.has_begun:
                    raise
            finally:
                connection.abandon(exchange)

    async def _connect(self) -> UpstreamConnection:
        try:
            return await self._pool.connect(None)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {self.address.url}: {error}") from None

    async def fetch(self, method: str, path: str, body: bytes = b"", timeout_s: float = 30.0) -> tuple[int, bytes]:
        """A whole answer: its status and body."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                response = await self.request(method, path, body, lambda data, _: parts.append(data))
        except TimeoutError:
            raise ConnectionError(f"{self.address.url}{path} has not answered within {timeout_s:g} s") from None
        return response.status, b"".join(parts)

    def close(self) -> None:
        self._pool.close()


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
