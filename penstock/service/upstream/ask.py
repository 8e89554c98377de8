"""One question to a server and its whole answer, for programs that have no event loop: commands, and starts that wait for a
server. No proxy is used and no redirect followed: a key is for the server it is sent to."""

import asyncio
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from penstock.service.upstream.connections import ConnectionPool, Fetch, Fetched
from penstock.service.upstream.endpoint import Endpoint, endpoint_of

MAX_ANSWER_BYTES = 64 << 20


class UnreachableError(OSError):
    """There is no connection; its cause says why."""


def ask(url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None, timeout_s: float) -> Fetched:
    """GET an address, or POST `body` to it. Raises ConfigError for what is no address, OSError where no answer comes."""
    parts, endpoint = urlsplit(url if "://" in url else f"http://{url}"), endpoint_of(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    length = {} if body is None else {"Content-Length": str(len(body))}
    lines = {"Host": endpoint.authority, "Connection": "close", **length, **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    data = f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\n{head}\r\n".encode() + (body or b"")
    try:
        connected = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    except OSError as error:
        raise UnreachableError(*error.args) from error
    with connected:
        connected.setblocking(False)
        return asyncio.run(_exchange(connected, endpoint, data, timeout_s))


def is_ready(url: str, timeout_s: float) -> bool:
    """A server says that it can answer."""
    try:
        return ask(f"{url}/readyz", timeout_s=timeout_s).status == 200
    except OSError:
        return False


async def _exchange(connected: socket.socket, endpoint: Endpoint, data: bytes, timeout_s: float) -> Fetched:
    async with asyncio.timeout(timeout_s):
        connection = await ConnectionPool(endpoint).connect(None, connected)
        exchange = Fetch(MAX_ANSWER_BYTES)
        connection.send(data, exchange)
        try:
            return await exchange.done
        finally:
            connection.close()
