"""/v1/models: what is served."""

from typing import Any

from starlette.requests import Request

from penstock.service.server.anthropic.routes import anthropic_model, anthropic_models
from penstock.service.server.front import Front
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import loading
from penstock.service.server.pool.resident import Residency
from penstock.service.server.served import AdaptedModel, ServedModel

STATUS = {
    Residency.COLD: "unloaded",
    Residency.LOADING: "loading",
    Residency.READY: "loaded",
    Residency.UNLOADING: "unloading",
    Residency.FAILED: "failed",
}
"""Where a model stands, in the words that llama.cpp's router has for it where it has one."""


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
    name = request.path_params["name"]
    model = next((one for one in front.models.known if one.name == name), None)
    if model is None:
        raise front.models.unknown(name)
    return Json(anthropic_model(model) if request.headers.get("anthropic-version") else model_value(model))


def model_value(model: ServedModel) -> dict[str, Any]:
    value = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "penstock",
        "max_model_len": model.known.max_context or None,
        "capabilities": model.capabilities,
    }
    if isinstance(model, AdaptedModel):
        counts = model.base.client.adapters
        is_loaded = counts is not None and model.adapter in counts.resident
        value |= {"parent": model.base.name, "root": model.adapter}
        value["status"] = {"value": STATUS[Residency.READY if is_loaded else Residency.COLD]}
    if model.resident is not None:
        is_failed = model.state is Residency.FAILED
        value["status"] = {"value": STATUS[model.state]} | ({"reason": model.resident.reason} if is_failed else {})
    return value
