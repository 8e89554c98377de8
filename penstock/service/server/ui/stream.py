"""A response of events that goes on until its source ends or its reader leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from penstock.service.server.http import sse
from penstock.service.server.http.connection import until_gone
from penstock.service.server.http.faults import ApiError

PING_S = 10.0


class EventAnswer:
    """`source` yields (event name, value); it is closed when the reader has left.

    A fault before the first event is an answer with its status; a source that is silent for `PING_S` begins the answer, and
    then a fault is an event.
    """

    def __init__(self, source: Callable[[], AsyncIterator[tuple[str, Any]]]) -> None:
        self._source = source

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = asyncio.create_task(until_gone(receive))
        source = self._source()
        is_begun = False
        coming: asyncio.Future[tuple[str, Any]] | None = None
        try:
            while True:
                if coming is None:
                    coming = asyncio.ensure_future(anext(source))
                await asyncio.wait((coming, gone), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                body = sse.PING
                if coming.done():
                    done, coming = coming, None
                    fault = done.exception()
                    if isinstance(fault, StopAsyncIteration):
                        break
                    if isinstance(fault, ApiError) and is_begun:
                        body = sse.named_event("fault", _told(fault))
                        await send({"type": "http.response.body", "body": body})
                        return
                    body = sse.named_event(*done.result())
                if not is_begun:
                    is_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": list(sse.HEADERS)})
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if not is_begun:
                await send({"type": "http.response.start", "status": 200, "headers": list(sse.HEADERS)})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            if coming is not None:
                await _drop(coming)
            with contextlib.suppress(Exception):
                await source.aclose()  # type: ignore[attr-defined]


def _told(error: ApiError) -> dict[str, Any]:
    return {"error": {"message": error.message, "param": error.param, "code": error.code}}


async def _drop(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
