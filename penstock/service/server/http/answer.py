"""Answers that are no call's: there whole, or sent in parts as they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import msgspec

from penstock.service import marks
from penstock.service.server.http.connection import until_gone
from penstock.service.server.http.exchange import RELAYED
from penstock.service.server.http.faults import ApiError
from penstock.service.server.http.sse import PING_S


class Plain:
    """An answer that is there whole."""

    def __init__(self, body: bytes, content_type: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._body = body
        self._status = 200
        self._headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body)), *headers]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        relayed, headers = RELAYED.get(), self._headers
        if relayed is not None and relayed.count is not None:
            headers = [*headers, (marks.USAGE_HEADER, b"%d %d %d" % relayed.count)]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class Parts:
    """An answer of unknown end: its parts are sent as they come, while its client is there.

    One with a `ping` begins with its first part, so that a fault before that is an answer with its status; where none comes for
    `PING_S` the ping is sent. From then on a fault is the last part, as `fault` words it.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        headers: Iterable[tuple[bytes, bytes]],
        ping: bytes = b"",
        fault: Callable[[ApiError], bytes] | None = None,
    ) -> None:
        self._parts = parts
        self._headers = list(headers)
        self._ping = ping
        self._fault = fault
        self._is_begun = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = asyncio.create_task(until_gone(receive))
        coming: asyncio.Future[bytes | None] | None = None
        try:
            if not self._ping:
                await self._begin(send)
            while True:
                coming = coming or asyncio.ensure_future(anext(self._parts, None))
                timeout_s = PING_S if self._ping else None
                await asyncio.wait((coming, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                part: bytes | None = self._ping
                if coming.done():
                    done, coming = coming, None
                    part = done.result()
                await self._begin(send)
                if part is None:
                    break
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except ApiError as error:
            if not self._is_begun or self._fault is None:
                raise
            await send({"type": "http.response.body", "body": self._fault(error)})
        finally:
            gone.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.wait((coming,))
            await self._parts.aclose()

    async def _begin(self, send: Any) -> None:
        if not self._is_begun:
            self._is_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})


class Json(Plain):
    def __init__(self, value: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(value if isinstance(value, bytes) else msgspec.json.encode(value), "application/json", headers)
        self._status = status
