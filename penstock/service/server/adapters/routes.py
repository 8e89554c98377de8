"""What admins do to adapters: vLLM's routes to load and unload one, llama.cpp's list."""

import asyncio
from typing import Annotated

import msgspec
from starlette.requests import Request

from penstock.service.server.adapters.table import AdapterTable
from penstock.service.server.front import Front, body_of, check_admin
from penstock.service.server.http.answer import Json, Plain
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid, not_found

MAX_NAME = 256
ORDER_S = 120.0
"""How long an admin waits for an adapter to be read, or for its users to end."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


class LoadBody(msgspec.Struct):
    """vLLM's body."""

    lora_name: Name
    lora_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    load_inplace: bool = False


class UnloadBody(msgspec.Struct):
    lora_name: Name
    lora_int_id: int | None = None


async def load_adapter(request: Request) -> Plain:
    """vLLM's /v1/load_lora_adapter."""
    table, front = _table(request)
    body = await body_of(request, LoadBody)
    path = table.path_of(body.lora_path)
    is_model = any(model.known_name == body.lora_name for model in front.models)
    if is_model or (table.get(body.lora_name) is not None and not body.load_inplace):
        raise invalid(
            f"{body.lora_name[:80]!r} is served already; send load_inplace to read it anew, or choose another name",
            "lora_name",
        )
    async with asyncio.timeout(ORDER_S):
        await table.load(body.lora_name, path)
    return Plain(f"Success: LoRA adapter '{body.lora_name}' added successfully.".encode(), "text/plain")


async def unload_adapter(request: Request) -> Plain:
    """vLLM's /v1/unload_lora_adapter; answered when nobody uses it any more."""
    table, _ = _table(request)
    body = await body_of(request, UnloadBody)
    if table.get(body.lora_name) is None:
        raise not_found(f"the adapter {body.lora_name[:80]!r} is not served here", "lora_name", "model_not_found")
    async with asyncio.timeout(ORDER_S):
        await table.unload(body.lora_name)
    return Plain(f"Success: LoRA adapter '{body.lora_name}' removed successfully.".encode(), "text/plain")


async def list_adapters(request: Request) -> Json:
    """llama.cpp's /lora-adapters."""
    table, _ = _table(request)
    return Json(table.value())


async def scale_adapters(request: Request) -> Json:
    """llama.cpp lays adapters over all requests at once; here each request names its own."""
    _table(request)
    message = "adapters are not laid over all requests here; name one as the model of a request"
    raise ApiError(ErrorKind.NOT_IMPLEMENTED, message, code="not_served")


def _table(request: Request) -> tuple[AdapterTable, Front]:
    front: Front = request.app.state.front
    check_admin(request, "adapters are an admin's to change; send an --admin-key")
    table = front.models.adapters
    if not isinstance(table, AdapterTable):
        message = "this server serves no adapters; start it with --adapter or --adapters-dir"
        raise not_found(message, code="not_served")
    return table, front
