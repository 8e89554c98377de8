"""/v1/messages and what belongs to it; and /v1/models with an `anthropic-version` header."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from penstock.service.server.anthropic.encoder import MessageEncoder
from penstock.service.server.anthropic.protocol import REFUSED, CountBody, MessagesBody
from penstock.service.server.anthropic.request import chat_of, generation_of
from penstock.service.server.calls.prepare import prepare, prompt_of_chat
from penstock.service.server.front import Counted, Front, Prepared, front_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.exchange import random_hex
from penstock.service.server.served import ServedModel


async def create_message(request: Request) -> Counted:
    front: Front = request.app.state.front
    begun = await front.begin(request, MessagesBody, REFUSED)
    body, model, caller = begun.body, begun.model, begun.caller
    call = await prepare(model, caller, generation_of(body))
    message_id, reports_miss = f"msg_{random_hex()}", body.diagnostics is not None
    encoder = MessageEncoder(message_id, model.name, body.max_tokens, caller.request_id, reports_miss)
    return Counted(front, Prepared(model, call, encoder), begun)


async def count_tokens(request: Request) -> Json:
    begun = await front_of(request).begin(request, CountBody, REFUSED)
    prompt = await prompt_of_chat(begun.model, chat_of(begun.body))
    return Json({"input_tokens": len(prompt.token_ids)})


def anthropic_models(front: Front) -> dict[str, Any]:
    data = [anthropic_model(model) for model in front.models.known]
    return {
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def anthropic_model(model: ServedModel) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.known.max_context,
        "max_tokens": model.known.max_context,
    }
