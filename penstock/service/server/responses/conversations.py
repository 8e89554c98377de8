"""/v1/conversations: items kept under one id, to which responses add theirs."""

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import Request

from penstock.service.edge.paging import page_of
from penstock.service.server.front import body_of, tenant_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.exchange import random_hex
from penstock.service.server.responses.items import input_items
from penstock.service.server.responses.kept import KeptResponses
from penstock.service.server.responses.protocol import ConversationBody, ConversationItemsBody, Item
from penstock.service.server.responses.routes import Responses
from penstock.service.store.responses import ConversationRow


async def create_conversation(request: Request) -> Json:
    service: Responses = request.app.state.responses
    body = await body_of(request, ConversationBody)
    row = ConversationRow(f"conv_{random_hex()}", tenant_of(request), int(time.time()), _text(body.metadata))
    await service.kept.put_conversation(row, input_items(body.items or []))
    return Json(_value(row))


async def retrieve_conversation(request: Request) -> Json:
    _, row = await _conversation(request)
    return Json(_value(row))


async def update_conversation(request: Request) -> Json:
    kept, row = await _conversation(request)
    body = await body_of(request, ConversationBody)
    row = row._replace(metadata=_text(body.metadata))
    await kept.put_conversation(row)
    return Json(_value(row))


async def delete_conversation(request: Request) -> Json:
    kept, row = await _conversation(request)
    await kept.delete_conversation(row.id)
    return Json({"id": row.id, "object": "conversation.deleted", "deleted": True})


async def list_items(request: Request) -> Json:
    kept, row = await _conversation(request)
    return Json(page_of((await kept.items(row.id))[::-1], request.query_params))


async def add_items(request: Request) -> Json:
    kept, row = await _conversation(request)
    body = await body_of(request, ConversationItemsBody)
    items = input_items(body.items)
    await asyncio.wrap_future(kept.add_items(row.id, items))
    return Json(_list(items))


async def retrieve_item(request: Request) -> Json:
    kept, row = await _conversation(request)
    name = request.path_params["item"]
    found = [item for item in await kept.items(row.id) if item["id"] == name]
    if not found:
        await kept.delete_item(row.id, name)  # says that it is not there
    return Json(found[0])


async def delete_item(request: Request) -> Json:
    kept, row = await _conversation(request)
    await kept.delete_item(row.id, request.path_params["item"])
    return Json(_value(row))


async def _conversation(request: Request) -> tuple[KeptResponses, ConversationRow]:
    service: Responses = request.app.state.responses
    return service.kept, await service.kept.conversation(request.path_params["id"], tenant_of(request))


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
