"""/v1/messages and what belongs to it."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from penstock.server.anthropic.encoder import MessageEncoder
from penstock.server.anthropic.protocol import REFUSED, CountBody, MessagesBody
from penstock.server.anthropic.request import chat_of, generation_of
from penstock.server.front import Counted, Front, Prepared
from penstock.server.generation import Caller, Delivery
from penstock.server.http.answer import Json
from penstock.server.prepare import prepare, prompt_of_chat
from penstock.server.served import ServedModel


async def create_message(request: Request) -> Counted:
    front: Front = request.app.state.front
    begun = await front.begin(request, MessagesBody, REFUSED)
    return front.answer(await prepare_message(front, begun.model, begun.caller, begun.body), begun)


async def prepare_message(front: Front, model: ServedModel, caller: Caller, body: MessagesBody) -> Prepared:
    call = await prepare(model, caller, generation_of(body))
    encoder = MessageEncoder(
        front.new_id("msg_"),
        model.name,
        max_tokens=body.max_tokens,
        request_id=caller.request_id,
        tells_miss=body.diagnostics is not None,
    )
    delivery = Delivery(is_stream=bool(body.stream), tells_progress=bool(body.include_progress))
    return Prepared(model, call, encoder, delivery)


async def count_tokens(request: Request) -> Json:
    front: Front = request.app.state.front
    begun = await front.read(request, CountBody, REFUSED)
    prompt = await prompt_of_chat(begun.model, chat_of(begun.body))
    return Json({"input_tokens": len(prompt.token_ids)})


def models_list(front: Front) -> dict[str, Any]:
    """What is served, as Anthropic's clients ask for it."""
    data = [model_value(model) for model in front.models.known]
    return {
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def model_value(model: ServedModel) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.facts.max_context,
        "max_tokens": model.facts.max_context,
    }
