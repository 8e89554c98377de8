"""What admins do to sessions in the KV cache and its tiers: list, pin, drop, export and import."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request

from penstock.service.server.front import body_of, check_admin, front_of
from penstock.service.server.http.answer import Json
from penstock.service.server.http.faults import invalid

ORDER_S = 120.0
MAX_PIN_S = 24 * 3600.0
REFUSAL = "sessions of all tenants are an admin's to see; send an --admin-key"


class SessionBody(msgspec.Struct):
    action: Literal["pin", "drop", "export", "import"]
    session: Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_PIN_S)] = 600.0


async def list_sessions(request: Request) -> Json:
    check_admin(request, REFUSAL)
    return Json(await _order(request, "list"))


async def order_session(request: Request) -> Json:
    check_admin(request, REFUSAL)
    body = await body_of(request, SessionBody)
    return Json(await _order(request, body.action, body.session, body.seconds))


async def _order(request: Request, action: str, name: str = "", seconds: float = 0.0) -> dict[str, Any]:
    async with asyncio.timeout(ORDER_S):
        answer = await front_of(request).models.first.client.order_cache(action, name, seconds)
    if answer.error:
        raise invalid(answer.error, "session")
    value: dict[str, Any] = {"sessions": [one._asdict() for one in answer.sessions]}
    return value | ({"file": answer.file} if answer.file else {})
