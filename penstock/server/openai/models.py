"""/v1/models: what is served."""

from typing import Any

from starlette.requests import Request

from penstock.server.anthropic.models import anthropic_model, anthropic_models
from penstock.server.front import Front
from penstock.server.http.answer import Json
from penstock.server.http.faults import ApiError, ErrorKind
from penstock.server.served import ServedModel, loading


async def list_models(request: Request) -> Json:
    front: Front = request.app.state.front
    known = front.models.known
    if not known:
        raise loading()
    if request.headers.get("anthropic-version"):
        return Json(anthropic_models(front))
    return Json({"object": "list", "data": [model_value(model) for model in known]})


async def show_model(request: Request) -> Json:
    front: Front = request.app.state.front
    model = named_model(front, request.path_params["name"])
    return Json(anthropic_model(model) if request.headers.get("anthropic-version") else model_value(model))


def named_model(front: Front, name: str) -> ServedModel:
    known = front.models.known
    if not known:
        raise loading()
    for model in known:
        if model.name == name:
            return model
    message = f"the model {name[:80]!r} is not served here"
    raise ApiError(ErrorKind.NOT_FOUND, message, param="model", code="model_not_found")


def model_value(model: ServedModel) -> dict[str, Any]:
    facts = model.facts
    return {
        "id": facts.model,
        "object": "model",
        "created": model.created,
        "owned_by": "penstock",
        "max_model_len": facts.max_context,
        "capabilities": [
            *(["completion"] if facts.can_generate else []),
            *(["embedding"] if facts.embedding_size else []),
        ],
    }
