"""/v1/models: what is served."""

from typing import Any

from starlette.requests import Request

from penstock.server.front import Front
from penstock.server.http.answer import Json
from penstock.server.http.faults import ApiError


async def list_models(request: Request) -> Json:
    front: Front = request.app.state.front
    return Json({"object": "list", "data": [_model(front)]})


async def show_model(request: Request) -> Json:
    front: Front = request.app.state.front
    name = request.path_params["name"]
    if name != front.model:
        raise ApiError(404, f"the model {name[:80]!r} is not served here", param="model", code="model_not_found")
    return Json(_model(front))


def _model(front: Front) -> dict[str, Any]:
    facts = front.facts
    return {
        "id": facts.model,
        "object": "model",
        "created": front.created,
        "owned_by": "penstock",
        "max_model_len": facts.max_context,
        "capabilities": [
            *(["completion"] if facts.can_generate else []),
            *(["embedding"] if facts.embedding_size else []),
        ],
    }
