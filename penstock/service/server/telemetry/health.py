"""How we are: /livez, /readyz, /health, /metrics, /version, and the numbers `penstock top` shows."""

from typing import Any

from starlette.requests import Request

from penstock.metrics.exposition import CONTENT_TYPE
from penstock.service import kv_events
from penstock.service.server.blocks import offer_of
from penstock.service.server.front import Front, front_of
from penstock.service.server.http.answer import Json, Plain
from penstock.service.server.http.exchange import exchange_of


async def live(request: Request) -> Json:
    """The server's loop turns. Says nothing of the engine: restarting us would not mend it."""
    return Json({"status": "alive"})


async def ready(request: Request) -> Json:
    """A token has come through the whole path lately, or was made just now."""
    state = front_of(request).health
    is_ready = await state.is_ready()
    status = "ready" if is_ready else "draining" if state.is_draining else "silent" if state.is_silent else "not ready"
    return Json({"status": status}, 200 if is_ready else 503, [] if is_ready else [(b"retry-after", b"1")])


async def health(request: Request) -> Json:
    """The engine has sent something lately; of several models, those that are loaded. No key is asked for, so that behind
    keys no model is named.
    """
    front: Front = request.app.state.front
    is_well = front.health.is_alive and not front.health.is_draining
    status: dict[str, Any] = {"status": "ok" if is_well else "unavailable"}
    if front.pool is not None and not front.config.is_keyed:
        status["models"] = {one.name: one.state.value for one in front.pool.residents}
    return Json(status, 200 if is_well else 503)


async def metrics(request: Request) -> Plain:
    front: Front = request.app.state.front
    async with front.bodies.turns.take(exchange_of(request.scope).tenant):
        return Plain(front.counters.render().encode(), CONTENT_TYPE, _offer(front, request))


def _offer(front: Front, request: Request) -> list[tuple[bytes, bytes]]:
    """For a router that we know: what other replicas may fetch here."""
    is_offered = front.pool is None and exchange_of(request.scope).relayed is not None
    offer = offer_of(front.models.first.client, front.config.role) if is_offered else None
    return [] if offer is None else [(kv_events.OFFER_HEADER, offer.encode())]


async def version(request: Request) -> Json:
    return Json({"version": front_of(request).version})
