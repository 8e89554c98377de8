"""/v1/responses: made, streamed, kept, found again, cancelled, deleted."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request

from penstock.service.edge.paging import page_of
from penstock.service.server.calls.generation import Caller
from penstock.service.server.calls.prepare import prepare, prompt_of_chat
from penstock.service.server.front import Begun, Counted, Front, Prepared, tenant_of
from penstock.service.server.http.answer import Json, Parts
from penstock.service.server.http.exchange import random_hex
from penstock.service.server.http.faults import ApiError, invalid
from penstock.service.server.http.sse import HEADERS
from penstock.service.server.jobs.bills import Bills
from penstock.service.server.responses.background import BackgroundResponses, EventLog
from penstock.service.server.responses.encoder import ResponseEncoder
from penstock.service.server.responses.items import input_items
from penstock.service.server.responses.kept import Fields, KeptResponses
from penstock.service.server.responses.protocol import REFUSED, InputBody, Item, ResponseBody
from penstock.service.server.responses.request import chat_of, generation_of, num_top_of
from penstock.service.server.served import ServedModel
from penstock.service.store.database import Database


@dataclass(frozen=True, slots=True)
class Responses:
    front: Front
    kept: KeptResponses
    background: BackgroundResponses
    bills: Bills


def make_responses(front: Front, database: Database) -> Responses:
    return Responses(front, KeptResponses(database), BackgroundResponses(front), Bills(database))


async def create_response(request: Request) -> Counted | Json | Parts:
    service: Responses = request.app.state.responses
    front = service.front
    begun = await front.begin(request, ResponseBody, REFUSED)
    body, tenant = begun.body, begun.caller.tenant
    items = await all_items(service, body, tenant)
    if body.background:
        return await _in_background(service, begun, items)
    prepared, _ = await prepare_response(service, begun.model, begun.caller, body, items)
    return Counted(front, prepared, begun)


async def prepare_response(
    service: Responses,
    model: ServedModel,
    caller: Caller,
    body: ResponseBody,
    items: Sequence[Item],
    response_id: str | None = None,
) -> tuple[Prepared, ResponseEncoder]:
    call = await prepare(model, caller, generation_of(body, items))
    head = head_of(model, body, response_id or f"resp_{random_hex()}")
    on_end = partial(_keep, service, caller.tenant, body, items)
    encoder = ResponseEncoder(head, model.tokenizer, num_top=num_top_of(body), on_end=on_end)
    return Prepared(model, call, encoder), encoder


async def all_items(service: Responses, body: InputBody, tenant: str) -> list[Item]:
    """What came before, as far as the client refers to it, and what it sends now."""
    if body.previous_response_id and body.conversation:
        raise invalid("send previous_response_id or conversation, not both", "previous_response_id")
    earlier: list[Item] = []
    if body.previous_response_id:
        row = await service.kept.get(body.previous_response_id, tenant)
        earlier = [*msgspec.json.decode(row.input), *msgspec.json.decode(row.value)["output"]]
    if body.conversation_id:
        await service.kept.conversation(body.conversation_id, tenant)
        earlier = await service.kept.items(body.conversation_id)
    return [*earlier, *input_items(body.input)]


AS_ASKED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("safety_identifier", "user"),
)
"""Fields that a response has as its body has them."""


def head_of(model: ServedModel, body: ResponseBody, response_id: str) -> Fields:
    """All that is known of a response before it is made."""
    tools = [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
        | {"strict": bool(tool.strict)}
        for tool in body.tools or ()
    ]
    reasoning = body.reasoning
    form = msgspec.to_builtins(body.text.format) if body.text is not None and body.text.format else {"type": "text"}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": bool(body.background),
        "completed_at": None,
        "conversation": {"id": body.conversation_id} if body.conversation_id else None,
        "error": None,
        "incomplete_details": None,
        "metadata": body.metadata or {},
        **{name: getattr(body, name) for name in AS_ASKED},
        "model": model.name,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        "service_tier": "flex" if body.service_tier == "flex" else "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": form, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
    }


def _keep(
    service: Responses, tenant: str, body: ResponseBody, items: Sequence[Item], response: Fields
) -> "list[Future[None]]":
    writing = []
    if body.store is not False:
        writing.append(service.kept.put(tenant, response, items))
    if body.conversation_id and response["status"] != "failed":
        more = [*input_items(body.input), *response["output"]]
        writing.append(service.kept.add_items(body.conversation_id, more))
    return writing


# In the background


async def _in_background(service: Responses, begun: "Begun[ResponseBody]", items: Sequence[Item]) -> Json | Parts:
    body = begun.body
    if body.store is False:
        raise invalid("a background response is kept until it is fetched; leave store out", "store")
    response_id = f"resp_{random_hex()}"
    await prepare_response(
        service, begun.model, begun.caller, body, items, response_id
    )  # refuses now what it would later
    queued = head_of(begun.model, body, response_id) | {"status": "queued", "output": [], "usage": None}
    await service.bills.open(response_id, begun.caller)
    await asyncio.wrap_future(service.kept.put(begun.caller.tenant, queued, items, msgspec.json.encode(body)))
    log = start_in_background(service, begun.caller, body, items, queued)
    if body.stream:
        return Parts(log.after(-1), HEADERS)
    return Json(queued)


def start_in_background(
    service: Responses, caller: Caller, body: ResponseBody, items: Sequence[Item], queued: Fields
) -> EventLog:
    find = partial(service.front.models.find, body.model)

    async def make() -> tuple[Prepared, ResponseEncoder]:
        model = find()
        prepared, encoder = await prepare_response(service, model, caller, body, items, queued["id"])
        encoder.head["created_at"] = queued["created_at"]
        service.kept.put(caller.tenant, encoder.response("in_progress"), items, msgspec.json.encode(body))
        return prepared, encoder

    def on_failed(error: ApiError) -> None:
        failed = {"status": "failed", "error": {"code": error.code or "server_error", "message": error.message}}
        service.kept.put(caller.tenant, queued | failed, items)

    on_over = partial(service.bills.for_response, caller, queued["id"], queued["model"])
    return service.background.start(queued["id"], find, make, on_failed, on_over)


async def resume_background(service: Responses) -> None:
    """Begin again what an earlier run accepted and did not end."""
    for row in await service.kept.unfinished():
        body = msgspec.json.decode(row.body, type=ResponseBody)
        queued = msgspec.json.decode(row.value) | {"status": "queued", "output": [], "usage": None}
        caller = await service.bills.payer(row.id, row.tenant)
        start_in_background(service, caller, body, msgspec.json.decode(row.input), queued)


# Found again


async def retrieve_response(request: Request) -> Json | Parts:
    service: Responses = request.app.state.responses
    response_id = request.path_params["id"]
    row = await service.kept.get(response_id, tenant_of(request))
    if request.query_params.get("stream") == "true":
        log = service.background.log_of(response_id)
        if log is None:
            raise invalid("the events of this response are not kept; retrieve it without stream", "stream")
        after = request.query_params.get("starting_after", "-1")
        if not after.lstrip("-").isdecimal():
            raise invalid("starting_after must be a sequence number", "starting_after")
        return Parts(log.after(int(after)), HEADERS)
    return Json(row.value.encode())


async def delete_response(request: Request) -> Json:
    service: Responses = request.app.state.responses
    response_id = request.path_params["id"]
    await service.background.cancel(response_id)
    await service.kept.delete(response_id, tenant_of(request))
    return Json({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Json:
    service: Responses = request.app.state.responses
    response_id, tenant = request.path_params["id"], tenant_of(request)
    row = await service.kept.get(response_id, tenant)
    response = msgspec.json.decode(row.value)
    if not response["background"]:
        raise invalid("only a background response can be cancelled", "response_id")
    if await service.background.cancel(response_id) or response["status"] in ("queued", "in_progress"):
        response |= {"status": "cancelled"}
        await asyncio.wrap_future(service.kept.put(tenant, response, msgspec.json.decode(row.input)))
    return Json(response)


async def list_input_items(request: Request) -> Json:
    service: Responses = request.app.state.responses
    row = await service.kept.get(request.path_params["id"], tenant_of(request))
    return Json(page_of(msgspec.json.decode(row.input)[::-1], request.query_params))


async def count_input_tokens(request: Request) -> Json:
    service: Responses = request.app.state.responses
    begun = await service.front.begin(request, InputBody, REFUSED)
    items = await all_items(service, begun.body, begun.caller.tenant)
    prompt = await prompt_of_chat(begun.model, chat_of(begun.body, items))
    return Json({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})
