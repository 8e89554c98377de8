"""What admins do to sessions in the KV cache and its tiers: list, pin, drop, export and import."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request

from penstock.service.server.front import Front
from penstock.service.server.http.answer import Json
from penstock.service.server.http.connection import exchange_of
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid

ORDER_S = 120.0
MAX_PIN_S = 24 * 3600.0


class SessionBody(msgspec.Struct):
    action: Literal["pin", "drop", "export", "import"]
    session: Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_PIN_S)] = 600.0


async def list_sessions(request: Request) -> Json:
    return Json(await _order(_front(request), "list"))


async def order_session(request: Request) -> Json:
    front = _front(request)
    body, _ = await front.bodies.read(request, SessionBody, {})
    return Json(await _order(front, body.action, body.session, body.seconds))


async def _order(front: Front, action: str, name: str = "", seconds: float = 0.0) -> dict[str, Any]:
    async with asyncio.timeout(ORDER_S):
        answer = await front.models.first.client.order_cache(action, name, seconds)
    if answer.error:
        raise invalid(answer.error, "session")
    value: dict[str, Any] = {"sessions": [one._asdict() for one in answer.sessions]}
    return value | ({"file": answer.file} if answer.file else {})


def _front(request: Request) -> Front:
    front: Front = request.app.state.front
    if front.config.is_keyed and not exchange_of(request.scope).is_admin:
        raise ApiError(
            ErrorKind.PERMISSION,
            "sessions of all tenants are an admin's to see; send an --admin-key",
            code="admin_only",
        )
    return front
