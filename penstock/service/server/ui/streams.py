"""Several chats at once over one connection: browsers open few to a host, and would send the rest one after another.

Each is a call like any other, admitted, measured and listed; only its events travel together with the others'.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from penstock.service.server.calls.call import Failure
from penstock.service.server.calls.generation import Caller
from penstock.service.server.front import Front, Prepared, caller_of
from penstock.service.server.http.answer import Parts
from penstock.service.server.http.body import convert
from penstock.service.server.http.exchange import ServerExchange, exchange_of, random_hex
from penstock.service.server.http.faults import ApiError, error_of_finish
from penstock.service.server.openai.chat import prepare_chat
from penstock.service.server.openai.protocol import REFUSED, ChatBody
from penstock.service.server.ui.stream import Events, event_answer

MAX_STREAMS = 64
News = tuple[str, dict[str, Any]]
Put = Callable[[str, dict[str, Any]], None]


class StreamsBody(msgspec.Struct, kw_only=True):
    """Bodies of chat completions, all answered as streams."""

    bodies: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MAX_STREAMS)]


async def stream_chats(request: Request) -> Parts:
    """Events `begin` (its request id), `chunk` (events of a chat completion as they come) and `end`, each with its index."""
    front: Front = request.app.state.front
    front.health.check_open()
    body, _ = await front.bodies.read(request, StreamsBody, {})
    chats = [convert(one, ChatBody, REFUSED)[0] for one in body.bodies]
    caller = caller_of(request)

    async def source() -> Events:
        news: asyncio.Queue[News | None] = asyncio.Queue()
        exchange = exchange_of(request.scope)
        tasks = [
            asyncio.create_task(_answer(front, caller, chat, exchange, partial(_put, news, index)))
            for index, chat in enumerate(chats)
        ]
        try:
            for task in tasks:
                task.add_done_callback(lambda _: news.put_nowait(None))
            for _ in tasks:
                while (one := await news.get()) is not None:
                    yield one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return event_answer(source())


async def _answer(front: Front, caller: Caller, chat: ChatBody, exchange: ServerExchange, put: Put) -> None:
    """One of them, from its place to its end; a refusal is its own."""
    exchange = replace(exchange, name=f"req_{random_hex()}", start_s=time.monotonic())
    try:
        model = front.models.find(chat.model)
        async with front.having(model):
            model.admission.enter(caller.tenant)
            try:
                prepared = await prepare_chat(front, model, caller, chat)
                await _report(prepared, exchange, put, reports_timings=bool(chat.return_timings))
            finally:
                model.admission.leave(caller.tenant)
        put("end", {})
    except Failure as failure:
        put("end", _fault(error_of_finish(failure.finish)))
    except ApiError as error:
        put("end", _fault(error))


async def _report(prepared: Prepared, exchange: ServerExchange, put: Put, *, reports_timings: bool) -> None:
    model, encoder = prepared.model, prepared.encoder
    with prepared.running(exchange) as call:
        put("begin", {"request_id": exchange.name})
        while not call.is_over:
            put("chunk", {"data": encoder.reporting(await call.news()).decode()})
        timings = model.meters.timings(call) if reports_timings else None
        put("chunk", {"data": encoder.closing(call, timings).decode()})


def _put(news: "asyncio.Queue[News | None]", index: int, name: str, value: dict[str, Any]) -> None:
    news.put_nowait((name, {"index": index} | value))


def _fault(error: ApiError) -> dict[str, Any]:
    return {"error": {"message": error.message, "code": error.code}}
