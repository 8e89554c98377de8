"""One question to a server and its whole answer, for programs that have no event loop: commands, and starts that wait for a
server. No proxy is used and no redirect followed: a key is for the server it is sent to."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from penstock.service.upstream.connections import ConnectionPool, Fetch, Fetched
from penstock.service.upstream.endpoint import endpoint_of

MAX_ANSWER_BYTES = 64 << 20


class UnreachableError(OSError):
    """There is no connection; its cause says why."""


def ask(url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None, timeout_s: float) -> Fetched:
    """GET an address, or POST `body` to it. Raises ConfigError for what is no address, OSError where no answer comes."""
    parts, endpoint = urlsplit(url if "://" in url else f"http://{url}"), replace(endpoint_of(url), path="")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"connection": "close", **(headers or {})}.items())
    pool = ConnectionPool(endpoint)
    data = pool.request("GET" if body is None else "POST", target, lines.encode(), body)
    try:
        connected = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    except OSError as error:
        raise UnreachableError(*error.args) from error
    with connected:
        connected.setblocking(False)
        return asyncio.run(_exchange(connected, pool, data, timeout_s))


def is_ready(url: str, timeout_s: float) -> bool:
    """A server says that it can answer."""
    try:
        return ask(f"{url}/readyz", timeout_s=timeout_s).status == 200
    except OSError:
        return False


async def _exchange(connected: socket.socket, pool: ConnectionPool, data: bytes, timeout_s: float) -> Fetched:
    async with asyncio.timeout(timeout_s):
        connection = await pool.connect(None, connected)
        exchange = Fetch(MAX_ANSWER_BYTES)
        connection.send(data, exchange)
        try:
            return await exchange.done
        finally:
            connection.close()
