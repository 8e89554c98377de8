"""The router put together: what comes from clients, where it goes, and what is answered here.

Everything it decides by is elsewhere: the edge and `gate.py` say who may, `dispatch.py` has the requests under way.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.service import kv_events
from penstock.service.config import ListenConfig, RouterConfig
from penstock.service.edge.access import Access, ApiKeys, is_public, key_of
from penstock.service.edge.bodies import IN_FLIGHT, BodiesInFlight
from penstock.service.edge.flow import StallWatch
from penstock.service.edge.frames import SOCKET_PATHS
from penstock.service.edge.memory import needs_trim, trim_memory
from penstock.service.edge.refusal import Refusal, not_found, unavailable
from penstock.service.edge.stamp import random_names
from penstock.service.edge.tls import TlsContexts
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.keys import KeyRecord
from penstock.service.gateway.limits import Denied
from penstock.service.gateway.settings import GuardrailSettings
from penstock.service.router.dispatch import Dispatcher
from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.service.router.gate import Gate, refusal_of
from penstock.service.router.guardrails import Guardrails
from penstock.service.router.kept.bills import collect_bills
from penstock.service.router.kept.holders import KEEPING, LISTS, kept_ids
from penstock.service.router.kept.lists import merged_list
from penstock.service.router.members import Members
from penstock.service.router.policy import RoutedCall
from penstock.service.router.proxy.asked import BYTES_PER_TOKEN, NOTHING, Wanted, chunk_hashes, wanted_of
from penstock.service.router.proxy.client import InboundConnection, shutting_down
from penstock.service.router.proxy.incoming import NO_CALLER, AnswerSink, Incoming, PlainCaller
from penstock.service.router.proxy.job import PROMPT_PATHS, Job, RelayOutcome
from penstock.service.router.proxy.relay import Relay
from penstock.service.router.proxy.sockets import RelayedSocket
from penstock.service.router.surface import OWN_ROUTES, is_for_any_replica, metrics, metrics_of_no_tenant, page_answer
from penstock.service.router.trace import RouterTracer
from penstock.service.upstream.connections import fetch

SWEEP_S = 0.25
BLOCKS_S = 0.5
"""How long a replica may take to say what blocks a prompt is made of."""
PROXIED = ("/v1/", "/api/")
METRICS_PATH = "/metrics"
_TOKEN_PATHS = ("/tokenize", "/detokenize", "/completion", "/embedding")
_RANK_PATHS = ("/rerank", "/score", "/v2/rerank")
PROXIED_PATHS = frozenset((*_TOKEN_PATHS, *_RANK_PATHS, "/docs", "/openapi.json"))
SHORT_PATHS = re.compile(r"/(?:chat/completions|completions|embeddings|responses|models)(?:/.*)?")
"""Clients leave `/v1` out; everything is decided by the full path."""
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RouterApp:
    """Lives on one event loop; `start` once it runs."""

    def __init__(
        self,
        listen: ListenConfig,
        config: RouterConfig,
        *,
        replica_key: str = "",
        version: str = "",
        gateway: Gateway | None = None,
        metrics_key: str = "",
        tracer: RouterTracer | None = None,
    ) -> None:
        self.listen = listen
        self.config = config
        self.version = version
        self.max_body_bytes = listen.max_body_mib << 20
        self.has_tenants = gateway is not None or len(listen.api_key) > 1 or listen.jwt is not None
        self.bodies = BodiesInFlight(IN_FLIGHT * self.max_body_bytes, has_tenants=self.has_tenants)
        self._stalls = StallWatch()
        self.fleet = LiveFleet(config.slow_start_s)
        self.access = Access(listen, ApiKeys(listen.api_key))
        self._metrics_keys = ApiKeys((metrics_key,) if metrics_key else ())
        self.gate = Gate(gateway, self.fleet) if gateway is not None else None
        self.dispatch = Dispatcher(config, self.fleet, self.access, self.gate, self.run)
        self.meters = self.dispatch.meters
        self._guardrails = Guardrails(self.meters.guardrails, self._answer, self.refuse)
        self.tls = TlsContexts(listen.tls)
        self.members = Members(
            self.fleet, config, replica_key, self.changed, lambda: self.tls.outgoing(config.replica_ca)
        )
        self.dispatch.members = self.members
        self._tracer = tracer
        self.is_draining = False
        self.on_change: Callable[[LiveReplica], None] = lambda replica: None
        self._numbers: dict[str, int] = {}
        self._ids, self._keys = random_names(24), random_names(32)
        self.clients: set[InboundConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Task[None]] = set()
        """Of these, the ones that clients wait for."""

    # From start to end

    def start(self) -> None:
        self.run(self._sweep())
        self.run(self.tls.watch())
        if self.access.tokens is not None:
            self.run(self.access.tokens.watch())
        if self.gate is not None:
            self.run(self.gate.refresh())
            self.run(collect_bills(self.gate.gateway, self.members))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Until it ends, or the router does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer(self, work: Coroutine[Any, Any, None]) -> None:
        """A part of a request's way that takes its time; a drain waits for it."""
        task = self.run(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in tuple(self.clients):
            client.abort()
        await self.members.close()
        self._guardrails.close()
        if self.dispatch.log is not None:
            self.dispatch.log.close()
        if self._tracer is not None:
            self._tracer.close()

    async def drain(self, patience_s: float) -> int:
        """Take nothing new and wait for what is under way, and for clients to read it; returns how many are left."""
        self.is_draining = True
        end_s = time.monotonic() + patience_s
        for client in tuple(self.clients):
            client.close_when_done()
        while (self.num_open or any(one.has_unread for one in self.clients)) and time.monotonic() < end_s:
            await asyncio.sleep(0.02)
        return self.num_open

    @property
    def num_open(self) -> int:
        """Requests being answered, and those on their way to a replica or from one to their client."""
        return len(self.dispatch.relays) + len(self._answers)

    @property
    def num_parked(self) -> int:
        """Requests that wait for a replica."""
        return len(self.dispatch.parked)

    # Replicas

    def add_replica(self, name: str, url: str) -> LiveReplica:
        """Raises ConfigError for a name that is taken or an address that is none."""
        return self.members.add(name, url)

    def remove_replica(self, name: str) -> LiveReplica | None:
        """Answers it has begun go on to their end."""
        replica = self.members.remove(name)
        if replica is not None:
            self.dispatch.unpark()
        return replica

    def changed(self, replica: LiveReplica) -> None:
        self.on_change(replica)
        self.dispatch.changed(replica)

    # Clients

    def check(self, method: str, path: str, headers: dict[bytes, bytes]) -> KeyRecord | PlainCaller | None:
        """Whose request it is; None where nobody need say. Raises Refusal."""
        self.access.check(method, headers)
        if is_public(path) or method == "OPTIONS":
            return None
        if path == METRICS_PATH and self._metrics_keys.tenant_of(key_of(headers)) is not None:
            return NO_CALLER
        if self.gate is not None:
            return self.gate.key(headers)
        return NO_CALLER if self.access.is_open else PlainCaller(self.access.tenant(method, path, headers))

    def handle(self, request: Incoming, client: AnswerSink) -> None:
        request.request_id = self._request_id(request)
        if not request.path.startswith(PROXIED) and SHORT_PATHS.fullmatch(request.path):
            request = replace(request, path="/v1" + request.path)
        try:
            if request.path in PROMPT_PATHS and request.method == "POST":  # nearly all of them
                self._route(request, client)
                return
            own, page = OWN_ROUTES.get((request.method, request.path)), page_answer(request)
            if request.headers.get(b"upgrade", b"").lower() == b"websocket" and isinstance(client, InboundConnection):
                self._open_socket(request, client)
            elif page is not None:
                client.respond(200, b"x-request-id: %b\r\n%b" % (request.request_id, page[0]), page[1])
            elif own is not None:
                if own is metrics and "metrics" not in getattr(request.caller, "scopes", ("metrics",)):
                    own = metrics_of_no_tenant
                client.respond(*self._own_answer(request, *own(self)))
            elif request.method == "OPTIONS":
                client.respond(*self._own_answer(request, 200, "text/plain", b""))
            elif request.path == "/v1/usage" and self.gate is not None and request.method == "GET":
                self._answer(self._report(request, client, partial(asyncio.to_thread, self.gate.usage, request.caller)))
            elif request.path.startswith(PROXIED) or request.path in PROXIED_PATHS or is_for_any_replica(request.path):
                self._route(request, client)
            else:
                raise not_found("there is no such path here")
        except (Refusal, Denied) as error:
            self.refuse(request, client, error)

    def _open_socket(self, request: Incoming, client: InboundConnection) -> None:
        """To whoever might send a request here, which each of its frames then is."""
        try:
            self.access.check("POST", request.headers)
            if request.path not in SOCKET_PATHS:
                raise not_found("no WebSocket is served on this path")
            if self.is_draining:
                raise unavailable("the router is shutting down; open it elsewhere", 1, code="shutting_down")
            client.upgrade(RelayedSocket(self, request, client))
        except Refusal as error:
            self.refuse(request, client, error)
            client.close_when_done()

    async def _report(
        self, request: Incoming, client: AnswerSink, make_body: Callable[[], Awaitable[bytes]], job: Job | None = None
    ) -> None:
        """An answer of ours that takes its time; the request it is for has taken no tokens."""
        with self._refusing(request, client):
            try:
                body = await make_body()
            finally:
                if job is not None:
                    self._take_back(job)
            if client.is_open:
                client.respond(*self._own_answer(request, 200, "application/json", body))

    @contextlib.contextmanager
    def _refusing(self, request: Incoming, client: AnswerSink, job: Job | None = None) -> Iterator[None]:
        """What is refused inside is told to the client, if it is still there, and costs nothing."""
        try:
            yield
        except (Refusal, Denied) as error:
            if job is not None:
                self._take_back(job)
            if client.is_open:
                self.refuse(request, client, error)

    def refuse(self, request: Incoming, client: AnswerSink, fault: Refusal | Denied) -> None:
        request.request_id = request.request_id or self._request_id(request)
        error = refusal_of(fault) if isinstance(fault, Denied) else fault
        self.meters.refused.add(1, (("code", error.code or str(error.status)),))
        status, body = error.worded(request.path, request.request_id)
        status, lines, body = self._own_answer(request, status, "application/json", body)
        client.respond(status, lines + b"".join(b"%b: %b\r\n" % pair for pair in error.headers), body)

    # A request

    def _route(self, request: Incoming, client: AnswerSink) -> None:
        if self.is_draining:
            raise shutting_down()
        guardrails = self.gate.guardrails(request) if self.gate is not None else None
        if guardrails is not None and guardrails.before:
            self._answer(self._judge(guardrails, request, client))
        else:
            self._admit(request, client)

    async def _judge(self, guardrails: GuardrailSettings, request: Incoming, client: AnswerSink) -> None:
        """The operator's own service first: what it refuses costs nothing."""
        with self._refusing(request, client):
            request = await self._guardrails.before(guardrails, request)
            if client.is_open:
                self._admit(request, client)

    def _admit(self, request: Incoming, client: AnswerSink) -> None:
        wanted = wanted_of(request.body) or NOTHING
        name = "" if wanted.model in (None, "default") else wanted.model or ""
        relay_key, call = next(self._keys), self._call(request, wanted, name)
        job = Job(request, relay_key, wanted, call, name, int(time.time()))
        if self.gate is not None:
            job.ticket = self.gate.admit(request, wanted)
            models = job.ticket.targets.models
            job.model = next((model for model in models if self.fleet.is_known(model)), models[0])
        if self._must_wait(job):
            self._answer(self._prepare(job, client))
            return
        try:
            self._begin(job, client)
        except Refusal:
            self._take_back(job)
            raise

    def _must_wait(self, job: Job) -> bool:
        """Money is set aside first, or a replica asked what the prompt is made of."""
        is_asked = self.dispatch.follows_blocks and job.request.path in PROMPT_PATHS
        return is_asked or (job.ticket is not None and bool(job.ticket.scopes))

    async def _prepare(self, job: Job, client: AnswerSink) -> None:
        with self._refusing(job.request, client, job):
            if self.gate is not None:
                await self.gate.reserve(job.ticket)
            if self.dispatch.follows_blocks and job.request.path in PROMPT_PATHS:
                await self._learn_blocks(job)
            if not client.is_open:
                raise unavailable("its client left", 1)
            self._begin(job, client)

    async def _learn_blocks(self, job: Job) -> None:
        """The engine's own words for the prompt; where they do not come, the request goes to the least busy."""
        pools = [pool for one, pool in self.members if pool.is_ours and self.fleet.takes(one, time.monotonic())]
        if not pools:
            return
        pool = pools[job.call.number % len(pools)]
        with contextlib.suppress(OSError, ValueError):
            found = await fetch(pool, job.asking(pool, kv_events.BLOCKS_HEADER), BLOCKS_S)
            if found.status == 200:
                num_tokens, hashes = kv_events.read_prompt_blocks(found.body)
                job.call = job.call._replace(hashes=hashes, num_tokens=num_tokens)

    def _begin(self, job: Job, client: AnswerSink) -> None:
        request = job.request
        if request.path.startswith(KEEPING):
            self._find_holder(job)
            if request.path in LISTS and request.method == "GET":
                pools = [pool for one, pool in self.members if one.state is ReplicaState.READY and pool.is_ours]
                self._answer(self._report(request, client, partial(merged_list, job, pools), job))
                return
        if not self.fleet.is_known(job.model):
            served = ", ".join(self.fleet.models) or "nothing yet"
            message = f"the model {job.model[:80]!r} is not served here; there is {served}"
            raise Refusal(404, message, param="model", code="model_not_found")
        if self._tracer is not None:
            job.trace = self._tracer.begin(request, job.model)
        guardrails = self.gate.guardrails(request) if self.gate is not None else None
        if guardrails is not None and guardrails.after:
            client = self._guardrails.guarded(guardrails, request, client)
        relay = Relay(self.dispatch, client, job)
        self.dispatch.enter(relay)
        if self.gate is not None:
            self.gate.prepare(job)
            if self._answer_again(relay, self.gate):
                return
        relay.start()

    def _find_holder(self, job: Job) -> None:
        """Who keeps what it is about. Raises Refusal where what is kept for one caller would be found by another."""
        pools = [pool for replica, pool in self.members if replica.state is ReplicaState.READY]
        if self.has_tenants and not all(pool.keeps_tenants for pool in pools):
            message = "a replica does not keep tenants apart, so nothing is stored; give it this router's PENSTOCK_REPLICA_KEY"
            raise Refusal(501, message, type="server_error", code="tenants_not_separated")
        job.is_kept = True
        ids = kept_ids(job.request.path, job.wanted)
        job.holder = self.dispatch.holders.find(job.tenant, ids)
        job.is_searched = bool(ids) and not job.holder

    def _take_back(self, job: Job) -> None:
        """It took no tokens."""
        if job.ticket is not None and self.gate is not None:
            self.gate.settle(job.ticket, (), RelayOutcome.REFUSED.value)

    def _answer_again(self, relay: Relay, gate: Gate) -> bool:
        """From memory, where the tenant wants that and the question has been answered."""
        kept = gate.remembered(relay.job)
        if kept is None:
            return False
        relay.finish_from_memory(kept.status)
        headers = kept.headers + b"x-request-id: %b\r\nx-penstock-cache: hit\r\n" % relay.job.request.request_id
        relay.client.respond(kept.status, headers, kept.body)
        return True

    def _call(self, request: Incoming, wanted: Wanted, model: str) -> RoutedCall:
        number = self._numbers.get(model, 0)
        self._numbers[model] = number + 1
        session = wanted.session or request.headers.get(b"x-session-id", b"").decode("latin-1")
        hashes: tuple[bytes, ...] = ()
        num_bytes = len(request.body)
        if self.dispatch.reads_chunks and request.body:
            prompt = wanted.prompt_bytes
            num_bytes = len(prompt)
            hashes = chunk_hashes(prompt, model.encode("utf-8", "surrogatepass"))
        return RoutedCall(number, session, hashes, num_bytes // BYTES_PER_TOKEN)

    # Every moment

    async def _sweep(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            self.fleet.forgive(max(now - last_s - 2 * SWEEP_S, 0.0))
            last_s = now
            self.dispatch.sweep(now)
            for replica in self.fleet.find_silent(now):
                self.changed(replica)
            for replica in self.fleet.find_quiet(now):
                self.members.hurry(replica)
            self._stalls.sweep(self.clients, now)
            if needs_trim():
                trim_memory()
            for client in tuple(self.clients):
                if client.deadline_s is not None and now >= client.deadline_s:
                    client.abort()
            self.fleet.eject_outliers(now)
            if self.gate is not None:
                self.gate.weigh()

    def _request_id(self, request: Incoming) -> bytes:
        given = request.headers.get(b"x-request-id", b"")
        return given if given and _ID.fullmatch(given) else b"req_" + next(self._ids)

    def _own_answer(self, request: Incoming, status: int, kind: str, body: bytes) -> tuple[int, bytes, bytes]:
        values = (kind.encode(), request.request_id, self.dispatch.cors(request))
        return status, b"content-type: %b\r\nx-request-id: %b\r\n%b" % values, body
