"""A response of events that goes on until its source ends or its reader leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from penstock.server.http import sse
from penstock.server.http.faults import ApiError

PING_S = 10.0


class EventAnswer:
    """`source` yields (event name, value); it is closed when the reader has left."""

    def __init__(self, source: Callable[[], AsyncIterator[tuple[str, Any]]]) -> None:
        self._source = source

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = asyncio.create_task(_until_gone(receive))
        source = self._source()
        is_begun = False
        try:
            while True:
                coming = asyncio.ensure_future(anext(source))
                while not coming.done():
                    await asyncio.wait((coming, gone), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                    if gone.done() or (not coming.done() and not is_begun):
                        break
                    if not coming.done():
                        await send({"type": "http.response.body", "body": sse.PING, "more_body": True})
                if gone.done():
                    await _drop(coming)
                    return
                if not is_begun:
                    if coming.done() and isinstance(coming.exception(), ApiError):
                        raise coming.exception()  # type: ignore[misc]
                    is_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": list(sse.HEADERS)})
                try:
                    name, value = await coming
                except StopAsyncIteration:
                    break
                except ApiError as error:
                    await send({"type": "http.response.body", "body": sse.named_event("fault", _told(error))})
                    return
                await send({"type": "http.response.body", "body": sse.named_event(name, value), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            with contextlib.suppress(Exception):
                await source.aclose()  # type: ignore[attr-defined]


def _told(error: ApiError) -> dict[str, Any]:
    return {"error": {"message": error.message, "param": error.param, "code": error.code}}


async def _drop(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
