"""The door all routes share: a request is let in to its model, which is loaded first if need be."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from starlette.requests import Request

from penstock.service.config import ServerConfig
from penstock.service.server.front.answered import Begun, CallBook, Counted, Prepared
from penstock.service.server.front.counters import ServerCounters
from penstock.service.server.front.health import ServerHealth
from penstock.service.server.generation import WHOLE, Caller, Delivery
from penstock.service.server.http.body import BodyReader
from penstock.service.server.http.connection import exchange_of
from penstock.service.server.http.faults import invalid
from penstock.service.server.http.relay import relayed_of
from penstock.service.server.pool.hold import hold
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.served import ServedModel, ServedModels

B = TypeVar("B", bound=Struct)

DEADLINE_HEADER = "x-request-timeout-ms"


class Front:
    """Shared by all requests. Lives on one event loop."""

    def __init__(self, models: ServedModels, config: ServerConfig, version: str, pool: ModelPool | None = None) -> None:
        """`pool` loads and unloads the models; without one they are there all the time."""
        self.models = models
        self.pool = pool
        self.config = config
        self.version = version
        self.fingerprint = f"penstock-{version}"
        self.bodies = BodyReader(config, models.max_context)
        self.health = ServerHealth(models, pool)
        self.counters = ServerCounters(models, pool, config.price_per_hour)
        self.book = CallBook()

    async def begin(
        self,
        request: Request,
        type_: type[B],
        refused: Mapping[str, str],
        delivery_of: Callable[[B], Delivery] = lambda _: WHOLE,
    ) -> Begun[B]:
        """Read a request for work that there is room for, and have its model ready."""
        self.health.check_open()
        caller = caller_of(request)
        if self.models.only is not None and self.pool is None:  # refused before a byte of the body is read
            self.models.only.admission.check(caller.tenant)
        body, ignored = await self.bodies.read(request, type_, refused)
        exchange_of(request.scope).read_s = read_s = time.monotonic()
        model = self.models.find(getattr(body, "model", None))
        if self.pool is None:
            self._enter(request, model, caller.tenant)  # once the body is here, not while it trickles in
            return Begun(body, model, caller, ignored)
        delivery = delivery_of(body)
        if not delivery.is_unload:
            await self._load(request, self.pool, model, delivery, caller)
        return Begun(body, model, caller, ignored, time.monotonic() - read_s)

    async def _load(
        self, request: Request, pool: ModelPool, model: ServedModel, delivery: Delivery, caller: Caller
    ) -> None:
        """Have the model until the request is over."""
        resident = model.resident
        if resident is None:
            return
        if resident.is_open:
            await pool.acquire(resident, tenant=caller.tenant)
        else:
            timeout_s = None if caller.deadline_ms is None else caller.deadline_ms / 1000
            await hold(
                request,
                pool.acquire(resident, timeout_s, tenant=caller.tenant),
                delivery,
                partial(pool.progress, resident),
            )
        with ExitStack() as stack:
            stack.callback(pool.release, resident, delivery.keep_alive_s if self.may_unload(request) else None)
            self._enter(request, model, caller.tenant)
            exchange = exchange_of(request.scope)
            if exchange.leave is not None:
                stack.callback(exchange.leave)
            exchange.leave = stack.pop_all().close

    def may_unload(self, request: Request) -> bool:
        """How long a model stays is a client's to say where there is one key at most, and otherwise an admin's."""
        is_alone = len(self.config.keys) < 2 and self.config.jwt is None
        return is_alone or exchange_of(request.scope).is_admin

    @asynccontextmanager
    async def having(self, model: ServedModel) -> AsyncIterator[None]:
        """The model is there meanwhile, however long that takes: for work without a waiting connection."""
        pool, resident = self.pool, model.resident
        if pool is None or resident is None:
            await model.client.ready.wait()
            yield
            return
        await pool.acquire(resident, is_patient=True)
        try:
            yield
        finally:
            pool.release(resident)

    def _enter(self, request: Request, model: ServedModel, tenant: str) -> None:
        model.admission.enter(tenant)
        exchange = exchange_of(request.scope)
        exchange.model = model.known_name
        exchange.leave = partial(model.admission.leave, tenant)

    def answer(self, prepared: Prepared, begun: Begun[Any]) -> Counted:
        return Counted(self.book, prepared, begun)


def tenant_of(request: Request) -> str:
    """Whose request it is: what is kept and cached is kept apart by it. Of a router's request, whose the router says."""
    return str(exchange_of(request.scope).tenant)


def caller_of(request: Request) -> Caller:
    relayed = relayed_of(request)
    return Caller(
        tenant=tenant_of(request),
        most=relayed.most if relayed is not None else None,
        account=relayed.account if relayed is not None else "",
        deadline_ms=_deadline_ms(request.headers.get(DEADLINE_HEADER)),
        request_id=exchange_of(request.scope).name,
    )


def _deadline_ms(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        deadline_ms = float(header)
    except ValueError:
        deadline_ms = -1.0
    if not 0.0 < deadline_ms <= 86_400_000.0:
        raise invalid(f"{DEADLINE_HEADER} must be a number of milliseconds above 0, at most a day", DEADLINE_HEADER)
    return deadline_ms
