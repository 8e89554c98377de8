"""Between the routes and the engines: the models that are served, calls in progress, and the way of a call from body to answer.

A route reads a body of its own dialect, makes a `Prepared` call of it, and hands it back here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct
from starlette.requests import Request

from penstock.metrics.exposition import Counter, Gauge, Metric, exposition_of_all
from penstock.service.config import ServerConfig
from penstock.service.server.blocks import PrefillAnswer, prefilling, prompt_blocks
from penstock.service.server.calls.answer import HttpAnswer, check_resumed
from penstock.service.server.calls.call import Call
from penstock.service.server.calls.calls import Calls
from penstock.service.server.calls.generation import Caller, Delivery
from penstock.service.server.dialect import AnswerEncoder
from penstock.service.server.http.body import BodyReader
from penstock.service.server.http.exchange import RELAYED, ServerExchange, exchange_of
from penstock.service.server.http.faults import ApiError, ErrorKind, invalid, loading, shutting_down
from penstock.service.server.jobs.bills import Bills
from penstock.service.server.pool.hold import hold
from penstock.service.server.pool.pool import ModelPool
from penstock.service.server.served import ServedModel, ServedModels
from penstock.service.server.telemetry.trace import SpanTracer

B = TypeVar("B", bound=Struct)

IGNORED_HEADER = b"x-penstock-ignored"
DEADLINE_HEADER = "x-request-timeout-ms"


@dataclass(frozen=True, slots=True)
class Begun(Generic[B]):
    """A request that was let in: its checked body, the model it is for, and who sent it."""

    body: B
    model: ServedModel
    caller: Caller
    delivery: Delivery
    ignored: tuple[str, ...]
    """Fields of the body that nothing reads."""
    load_s: float = 0.0
    """How long it waited for the model to be loaded."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names are a client's: what no header can hold is shown as a question mark."""
        if not self.ignored:
            return []
        names = "".join(c if c.isascii() and c.isprintable() else "?" for c in ", ".join(self.ignored)[:1000])
        return [(IGNORED_HEADER, names.encode())]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that could be made, and how its answer is worded."""

    model: ServedModel
    call: Call
    encoder: AnswerEncoder

    @contextmanager
    def running(self, exchange: ServerExchange | None = None) -> Iterator[Call]:
        """The call without a connection: begun, counted while it runs, and taken back whatever happens."""
        call, meters = self.call, self.model.meters
        meters.enter(call, exchange)
        try:
            call.start()
            yield call
        finally:
            call.close()
            meters.leave(call)

    async def collect(self) -> dict[str, Any]:
        """The whole answer, for a file. Raises Failure when a choice ends badly."""
        with self.running() as call:
            while not call.is_over:
                self.encoder.keep(await call.news())
            return self.encoder.whole(call, None)


@dataclass(frozen=True, slots=True)
class Counted:
    """An answer that is watched and measured while it runs."""

    front: "Front"
    prepared: Prepared
    begun: Begun[Any]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        front, begun, model, call = self.front, self.begun, self.prepared.model, self.prepared.call
        call.reports_progress = begun.delivery.reports_progress
        call.load_s = begun.load_s
        call.arrival_s -= begun.load_s  # what its client has waited is counted
        meters, admission = model.meters, model.admission
        relayed = RELAYED.get()
        if relayed is not None and relayed.asks_blocks:
            blocks = prompt_blocks(call.requests[0].prompt, call.requests[0].salt, model.facts.block_size)
            await blocks(scope, receive, send)
            return
        answer: HttpAnswer | PrefillAnswer
        if relayed is not None and relayed.only_prefills:
            call = prefilling(model.client, model.tokenizer, call)
            answer = PrefillAnswer(call)
        else:
            if relayed is not None and relayed.resumed is not None:
                check_resumed(relayed.resumed, len(call.writers), model.facts.vocab_size, model.known.max_context)
            headers = [*admission.limits(begun.caller.tenant), *begun.headers]
            encoder, times = self.prepared.encoder, meters.timings
            answer = HttpAnswer(call, encoder, begun.delivery, times, admission, front.calls, headers)
        exchange = exchange_of(scope)
        exchange.call = call
        meters.enter(call, exchange)
        try:
            await answer(scope, receive, send)
        finally:
            if not answer.is_sent and front.bills is not None:
                front.bills.for_call(begun.caller, model.known_name, call)
            if front.tracer is not None:
                exchange.timings = meters.timings(call)
            meters.leave(call)


class ServerCounters:
    """Numbers of the server itself beside those its models keep."""

    def __init__(self, models: ServedModels, pool: ModelPool | None, price_per_hour: float | None) -> None:
        self.machine: Callable[[], list[Metric]] = list
        """What the machine says of itself."""
        self.http_responses = Counter("penstock_http_responses", "Answers sent, by route and status")
        self._models = models
        self._pool = pool
        self._price_per_hour = price_per_hour
        self._start_s = time.monotonic()

    def render(self) -> str:
        models, pool = self._models, self._pool
        groups = [(model.meters.metrics, {"model_name": model.known_name}) for model in models]
        first = {"model_name": models.first.known_name}
        if models.adapters is not None:
            groups.append((models.adapters.metrics(), first))
        if pool is not None:
            groups += [(meters.metrics, {"model_name": name}) for name, meters in pool.meters.items()]
        groups.append(([self.http_responses, *self._money()], first))
        groups.append((self.machine(), {}))
        return exposition_of_all(groups)

    def _money(self) -> list[Metric]:
        """What was spent since the start, and what 1,000 generated tokens came to, where an hour has a price."""
        if self._price_per_hour is None:
            return []
        dollars = self._price_per_hour / 3600.0 * (time.monotonic() - self._start_s)
        spent = Counter("penstock_cost_dollars", "Dollars spent since the start, by price-per-hour", dollars)
        num_tokens = sum(model.meters.output_tokens.total for model in self._models)
        each = 1000.0 * spent.total / num_tokens if num_tokens else 0.0
        return [spent, Gauge("penstock_dollars_per_1k_tokens", "Dollars of 1,000 generated tokens", lambda: each)]


class ServerHealth:
    """Of the served models together. Draining begins once and has no end."""

    def __init__(self, models: ServedModels, pool: ModelPool | None) -> None:
        self.is_draining = False
        self.at_drain: list[Callable[[], None]] = []
        """Told when draining begins: work that is no call ends then."""
        self.num_held = 0
        """Requests whose model is being loaded for them, until they are admitted."""
        self._models = models
        self._pool = pool

    @property
    def num_open(self) -> int:
        """Calls admitted and not over, and requests that wait for a model."""
        return self.num_held + sum(model.admission.num_open for model in self._models)

    @property
    def is_alive(self) -> bool:
        """Every engine has sent something lately."""
        return all(model.is_alive for model in self._models)

    @property
    def is_silent(self) -> bool:
        """An engine that was ready has not sent so much as a sign of life."""
        return any(model.is_silent for model in self._models)

    async def is_ready(self) -> bool:
        """A token has come through the real path of every model lately, or comes now.

        Of several that come and go one is enough, so that a wrong one takes no other down; but those that are pinned are
        waited for, until they have been tried.
        """
        if self.is_draining:
            return False
        ready = await asyncio.gather(*(model.is_ready() for model in self._models))
        if self._pool is None:
            return all(ready)
        return any(ready) and not any(one.is_pinned and one.is_untried for one in self._pool.residents)

    def check_open(self) -> None:
        """Raise the error that says why no request is taken now."""
        if self.is_draining:
            raise shutting_down()
        if self._pool is None and not self._models.first.is_open:
            raise loading()

    async def drain(self, timeout_s: float) -> None:
        """Let calls in progress end; no new ones come in."""
        self.is_draining = True
        for end in self.at_drain:
            end()
        deadline_s = time.monotonic() + timeout_s
        while self.num_open and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)


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
        self.calls = Calls()
        self.tracer: SpanTracer | None = None
        self.bills: Bills | None = None
        """Where a gateway finds what answers took that were not sent to their end."""

    async def begin(
        self,
        request: Request,
        type_: type[B],
        refused: Mapping[str, str],
        read_delivery: Callable[[B], Delivery] | None = None,
    ) -> Begun[B]:
        """Read a request for work that there is room for, and have its model ready."""
        self.health.check_open()
        exchange, caller = exchange_of(request.scope), caller_of(request)
        if self.pool is None:  # refused before a byte of the body is read
            self.models.first.admission.check(caller.tenant)
        body, ignored = await self.bodies.read(request, type_, refused)
        exchange.read_s = read_s = time.monotonic()
        model = self.models.find(getattr(body, "model", None))
        delivery = (read_delivery or delivery_of)(body)
        if self.pool is None:
            self._enter(exchange, model, caller.tenant)  # once the body is here, not while it trickles in
            return Begun(body, model, caller, delivery, ignored)
        if not delivery.is_unload:
            await self._load(request, self.pool, model, delivery, caller)
        return Begun(body, model, caller, delivery, ignored, time.monotonic() - read_s)

    async def _load(
        self, request: Request, pool: ModelPool, model: ServedModel, delivery: Delivery, caller: Caller
    ) -> None:
        """Have the model until the request is over."""
        resident = model.resident
        if resident is None:
            return
        self.health.num_held += 1
        try:
            if resident.is_open:
                await pool.acquire(resident, tenant=caller.tenant)
            else:
                timeout_s = None if caller.deadline_ms is None else caller.deadline_ms / 1000
                ready = pool.acquire(resident, timeout_s, tenant=caller.tenant)
                await hold(request, ready, delivery, partial(pool.progress, resident))
            with ExitStack() as stack:
                stack.callback(pool.release, resident, delivery.keep_alive_s if self.may_unload(request) else None)
                exchange = exchange_of(request.scope)
                self._enter(exchange, model, caller.tenant)
                if exchange.leave is not None:
                    stack.callback(exchange.leave)
                exchange.leave = stack.pop_all().close
        finally:
            self.health.num_held -= 1

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

    def _enter(self, exchange: ServerExchange, model: ServedModel, tenant: str) -> None:
        model.admission.enter(tenant)
        exchange.model = model
        exchange.leave = partial(model.admission.leave, tenant)


def delivery_of(body: Any) -> Delivery:
    """As the fields say that most dialects share."""
    options = getattr(body, "stream_options", None) or body
    return Delivery(
        is_stream=bool(getattr(body, "stream", None)),
        reports_progress=bool(getattr(options, "include_progress", None)),
        reports_timings=bool(getattr(body, "return_timings", None)),
    )


def front_of(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


async def body_of(request: Request, type_: type[B]) -> B:
    """The checked body of a request that is for no model."""
    body, _ = await front_of(request).bodies.read(request, type_, {})
    return body


def sees_all(request: Request) -> bool:
    """Where there are no keys everybody may look; else those with an admin key."""
    return not front_of(request).config.is_keyed or exchange_of(request.scope).is_admin


def check_admin(request: Request, message: str) -> None:
    if not sees_all(request):
        raise ApiError(ErrorKind.PERMISSION, message, code="admin_only")


def tenant_of(request: Request) -> str:
    """Whose request it is: what is kept and cached is kept apart by it. Of a router's request, whose the router says."""
    return str(exchange_of(request.scope).tenant)


def caller_of(request: Request) -> Caller:
    exchange = exchange_of(request.scope)
    relayed = exchange.relayed
    return Caller(
        tenant=exchange.tenant,
        most=relayed.most if relayed is not None else None,
        account=relayed.account if relayed is not None else "",
        deadline_ms=_deadline_ms(request.headers.get(DEADLINE_HEADER)),
        request_id=exchange.name,
        priority=relayed.priority if relayed is not None else 0,
        peer=relayed.peer if relayed is not None else "",
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
