"""A client that waits for its model to be loaded: told how far that is, and no longer waited for once it has left.

An answer in parts is begun early for it: after a moment where it asked to be told of progress, otherwise when a proxy might
think that we are gone; until then every refusal still has its own status.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from penstock.service.server.calls.generation import Delivery
from penstock.service.server.dialect import Dialect, Progress
from penstock.service.server.http.connection import until_gone
from penstock.service.server.http.exchange import exchange_of
from penstock.service.server.http.sse import PING_S

PROGRESS_S = 0.5


async def hold(request: Request, ready: Awaitable[None], delivery: Delivery, progress: Callable[[], Progress]) -> None:
    """Wait with the client. Raises what `ready` does, or ClientDisconnect."""
    waiting = asyncio.ensure_future(ready)
    gone = asyncio.ensure_future(until_gone(request.receive))
    is_relayed = exchange_of(request.scope).relayed is not None  # a router waits by itself, and may ask another
    reports = delivery.is_stream and not is_relayed
    pause_s = PROGRESS_S if delivery.reports_progress else PING_S
    try:
        while True:
            await asyncio.wait(
                (waiting, gone), timeout=pause_s if reports else None, return_when=asyncio.FIRST_COMPLETED
            )
            if waiting.done():
                waiting.result()
                return
            if gone.done():
                raise ClientDisconnect
            await _report(request, progress(), delivery)
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)


async def _report(request: Request, progress: Progress, delivery: Delivery) -> None:
    exchange = exchange_of(request.scope)
    dialect: Dialect = exchange.dialect
    send = exchange.send
    await send(
        {"type": "http.response.start", "status": 200, "headers": list(dialect.stream_headers)}
    )  # the first counts
    data = dialect.progress(progress) if delivery.reports_progress else dialect.comment(progress)
    if data:
        await send({"type": "http.response.body", "body": data, "more_body": True})
