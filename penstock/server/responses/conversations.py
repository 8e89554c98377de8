"""/v1/conversations: items kept under one id, to which responses add theirs."""

import time
from typing import Any

import msgspec
from starlette.requests import Request

from penstock.server.front import Front
from penstock.server.http.answer import Json
from penstock.server.responses.items import input_items
from penstock.server.responses.protocol import ConversationBody, ConversationItemsBody, Item
from penstock.server.responses.routes import page_of
from penstock.store.responses import ConversationRow


async def create_conversation(request: Request) -> Json:
    front: Front = request.app.state.front
    body, _ = await front.body(request, ConversationBody, {})
    row = ConversationRow(front.new_id("conv_"), front.tenant(request), int(time.time()), _text(body.metadata))
    await front.responses.put_conversation(row, input_items(body.items or []))
    return Json(_value(row))


async def retrieve_conversation(request: Request) -> Json:
    front: Front = request.app.state.front
    return Json(_value(await _conversation(front, request)))


async def update_conversation(request: Request) -> Json:
    front: Front = request.app.state.front
    row = await _conversation(front, request)
    body, _ = await front.body(request, ConversationBody, {})
    row = row._replace(metadata=_text(body.metadata))
    await front.responses.put_conversation(row)
    return Json(_value(row))


async def delete_conversation(request: Request) -> Json:
    front: Front = request.app.state.front
    row = await _conversation(front, request)
    await front.responses.delete_conversation(row.id)
    return Json({"id": row.id, "object": "conversation.deleted", "deleted": True})


async def list_items(request: Request) -> Json:
    front: Front = request.app.state.front
    row = await _conversation(front, request)
    return Json(page_of(await front.responses.items(row.id), request))


async def add_items(request: Request) -> Json:
    front: Front = request.app.state.front
    row = await _conversation(front, request)
    body, _ = await front.body(request, ConversationItemsBody, {})
    items = input_items(body.items)
    await front.settled(front.responses.add_items(row.id, items))
    return Json(_list(items))


async def retrieve_item(request: Request) -> Json:
    front: Front = request.app.state.front
    row = await _conversation(front, request)
    name = request.path_params["item"]
    found = [item for item in await front.responses.items(row.id) if item["id"] == name]
    if not found:
        await front.responses.delete_item(row.id, name)  # says that it is not there
    return Json(found[0])


async def delete_item(request: Request) -> Json:
    front: Front = request.app.state.front
    row = await _conversation(front, request)
    await front.responses.delete_item(row.id, request.path_params["item"])
    return Json(_value(row))


async def _conversation(front: Front, request: Request) -> ConversationRow:
    return await front.responses.conversation(request.path_params["id"], front.tenant(request))


def _value(row: ConversationRow) -> dict[str, Any]:
    metadata = msgspec.json.decode(row.metadata)
    return {"id": row.id, "object": "conversation", "created_at": row.created_s, "metadata": metadata}


def _list(items: list[Item]) -> dict[str, Any]:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"],
        "last_id": items[-1]["id"],
        "has_more": False,
    }


def _text(metadata: dict[str, str] | None) -> str:
    return msgspec.json.encode(metadata or {}).decode()
