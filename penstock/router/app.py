"""The router put together: what comes from clients, where it goes, and what is answered here.

Looks at the clock; everything it decides by is elsewhere and pure: `policy.py` chooses, `fleet.py` knows, `breaker.py` judges.
"""

import asyncio
import itertools
import os
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.config import ListenConfig, RouterConfig
from penstock.errors import CapacityError
from penstock.gateway.gateway import Admittance, Gateway, Spent
from penstock.gateway.keys import KeyRecord
from penstock.gateway.settings import OUTSIDE
from penstock.router.access import PUBLIC_PATHS, Access, key_of, no_key
from penstock.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.router.gate import Gate
from penstock.router.meters import RouterMeters
from penstock.router.pages import is_for_any_replica, page_answer
from penstock.router.policy import POLICIES, Policy, RoutedCall
from penstock.router.probe import Probe
from penstock.router.proxy.asked import BYTES_PER_TOKEN, NOTHING, Wanted, chunk_hashes, wanted_of
from penstock.router.proxy.client import InboundConnection, Incoming
from penstock.router.proxy.endpoint import ConnectionPool, endpoint_of
from penstock.router.proxy.faults import Refusal, not_found, unavailable
from penstock.router.proxy.job import Job, RelayOutcome
from penstock.router.proxy.relay import Relay
from penstock.router.record import DecisionLog
from penstock.router.surface import OWN_ROUTES

SWEEP_S = 0.25
RETRY_SHARE = 0.1
"""Retries a request earns for all: so many at most however much fails."""
MAX_RETRY_CREDIT = 100.0
FIRST_RETRY_CREDIT = 10.0
PROXIED = ("/v1/", "/api/")
PROXIED_PATHS = frozenset(("/tokenize", "/detokenize", "/rerank", "/score", "/v2/rerank", "/completion", "/embedding"))
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
    ) -> None:
        self.listen = listen
        self.config = config
        self.version = version
        self.max_body_bytes = listen.max_body_mib << 20
        self.fleet = LiveFleet(config.slow_start_s)
        self.access = Access(listen)
        self.meters = RouterMeters(self.fleet, lambda: len(self._parked), lambda: len(self._relays))
        self.is_draining = False
        self.is_metered = gateway is not None
        self.gate = Gate(gateway, self.fleet) if gateway is not None else None
        self.log: DecisionLog | None = DecisionLog(config.route_log) if config.route_log else None
        self.on_change: Callable[[LiveReplica], None] = lambda replica: None
        self._replica_key = replica_key
        self._policies: dict[str, Policy] = {}
        self._numbers: dict[str, int] = {}
        self._pools: dict[str, ConnectionPool] = {}
        self._probes: dict[str, tuple[Probe, asyncio.Task[None]]] = {}
        self._relays: set[Relay] = set()
        self._parked: dict[Relay, float] = {}
        self._clients: set[InboundConnection] = set()
        self._retry_credit = FIRST_RETRY_CREDIT
        self._instance = os.urandom(6).hex().encode()
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads_hashes = POLICIES[config.policy](config.seed).reads_hashes

    # From start to end

    def now(self) -> float:
        return time.monotonic()

    def start(self) -> None:
        self._run(self._sweep())
        if self.gate is not None:
            self._run(self.gate.refresh())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = [*self._tasks, *(task for _, task in self._probes.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in tuple(self._clients):
            client.abort()
        for pool in self._pools.values():
            pool.close()
        if self.log is not None:
            self.log.close()

    async def drain(self, patience_s: float) -> int:
        """Take nothing new and wait for what is under way; returns how many are left."""
        self.is_draining = True
        end_s = self.now() + patience_s
        for client in tuple(self._clients):
            client.close_when_done()
        while self._relays and self.now() < end_s:
            await asyncio.sleep(0.02)
        return len(self._relays)

    @property
    def num_open(self) -> int:
        return len(self._relays)

    @property
    def num_parked(self) -> int:
        """Requests that wait for a replica."""
        return len(self._parked)

    # Replicas

    def add_replica(self, name: str, url: str) -> LiveReplica:
        """Raises ConfigError for a name that is taken or an address that is none."""
        pool = ConnectionPool(endpoint_of(url), key=self._replica_key)
        replica = self.fleet.add(name, url)
        probe = Probe(self.fleet, replica, pool, self.config.probe_s, self._changed)
        self._pools[name] = pool
        self._probes[name] = (probe, asyncio.ensure_future(probe.run()))
        return replica

    def add_outside(self, name: str, url: str, model: str, key: str) -> None:
        """Somebody else's API, asked as `outside:NAME` by the gateway's rules alone."""
        pool = ConnectionPool(endpoint_of(url), key=key, model=model)
        self.fleet.add_outside(OUTSIDE + name, url, OUTSIDE + name)
        self._pools[OUTSIDE + name] = pool

    def remove_replica(self, name: str) -> LiveReplica | None:
        """Answers it has begun go on to their end."""
        replica = self.fleet.remove(name)
        if replica is not None:
            _, task = self._probes.pop(name)
            task.cancel()
            self._pools.pop(name)
            self._unpark()
        return replica

    def note_failure(self, replica: LiveReplica, message: str, *, is_gone: bool) -> None:
        self.meters.failures.add(1, (("replica", replica.name),))
        if is_gone and self.fleet.hear(replica, ReplicaState.GONE, self.now()):
            self._changed(replica)
        if replica.name in self._probes:
            self._probes[replica.name][0].hurry()

    def _changed(self, replica: LiveReplica) -> None:
        self.on_change(replica)
        if replica.state is ReplicaState.GONE:
            for relay in [one for one in self._relays if one.replica is replica]:
                relay.lose_replica("the replica does not answer any more")
        elif replica.state is ReplicaState.READY:
            self._unpark()

    # Clients

    def opened(self, client: InboundConnection) -> None:
        self._clients.add(client)

    def closed(self, client: InboundConnection) -> None:
        self._clients.discard(client)

    def handle(self, request: Incoming, client: InboundConnection) -> None:
        request_id = self._request_id(request)
        try:
            self.access.check(request)
            own, page = OWN_ROUTES.get((request.method, request.path)), page_answer(request)
            if page is not None:
                client.respond(200, b"x-request-id: %b\r\n%b" % (request_id, page[0]), page[1])
            elif own is not None:
                if request.path not in PUBLIC_PATHS:
                    self._key(request)
                client.respond(*self._own_answer(request, request_id, *own(self)))
            elif request.method == "OPTIONS":
                client.respond(*self._own_answer(request, request_id, 200, "text/plain", b""))
            elif request.path == "/v1/usage" and self.gate is not None and request.method == "GET":
                body = self.gate.usage(self.gate.key(request))
                client.respond(*self._own_answer(request, request_id, 200, "application/json", body))
            elif request.path.startswith(PROXIED) or request.path in PROXIED_PATHS or is_for_any_replica(request.path):
                self._route(request, request_id, client)
            else:
                raise not_found("there is no such path here")
        except Refusal as error:
            self._refuse(request, request_id, client, error)

    def _refuse(self, request: Incoming, request_id: bytes, client: InboundConnection, error: Refusal) -> None:
        self.meters.refused.add(1, (("code", error.code or str(error.status)),))
        status, lines, body = self._own_answer(request, request_id, error.status, "application/json", error.body)
        client.respond(status, lines + b"".join(b"%b: %b\r\n" % pair for pair in error.headers), body)

    def _key(self, request: Incoming) -> KeyRecord | None:
        """Whose request it is, where the gateway knows; raises Refusal for a key that opens nothing."""
        if self.gate is not None:
            return self.gate.key(request)
        keys = self.access.keys
        if keys and keys.number(key_of(request)) is None:
            raise no_key()
        return None

    # A request

    def _route(self, request: Incoming, request_id: bytes, client: InboundConnection) -> None:
        key = self._key(request)
        if self.is_draining:
            raise unavailable("the router is shutting down; send the request elsewhere", 1, code="shutting_down")
        wanted = wanted_of(request.body) or NOTHING
        name = "" if wanted.model in (None, "default") else wanted.model or ""
        call = self._call(request, wanted, name)
        ticket = None
        if self.gate is not None and key is not None:
            ticket = self.gate.admit(key, request, request_id, wanted, call.num_tokens)
            name = ticket.targets.models[0]
            if ticket.scopes:
                self._run(self._reserve(request, request_id, client, wanted, call, ticket))
                return
        self._begin(request, request_id, client, wanted, call, name, ticket)

    async def _reserve(
        self,
        request: Incoming,
        request_id: bytes,
        client: InboundConnection,
        wanted: Wanted,
        call: RoutedCall,
        ticket: Admittance,
    ) -> None:
        try:
            if self.gate is not None:
                await self.gate.reserve(ticket)
            if not client.is_open:
                raise unavailable("its client left", 1)
            self._begin(request, request_id, client, wanted, call, ticket.targets.models[0], ticket)
        except Refusal as error:
            if self.gate is not None:
                self.gate.settle(ticket, (), RelayOutcome.REFUSED.value)
            if client.is_open:
                self._refuse(request, request_id, client, error)

    def _begin(
        self,
        request: Incoming,
        request_id: bytes,
        client: InboundConnection,
        wanted: Wanted,
        call: RoutedCall,
        model: str,
        ticket: Admittance | None,
    ) -> None:
        if not self.fleet.is_known(model):
            if ticket is not None and self.gate is not None:
                self.gate.settle(ticket, (), RelayOutcome.REFUSED.value)
            served = ", ".join(self.fleet.models) or "nothing yet"
            message = f"the model {model[:80]!r} is not served here; there is {served}"
            raise Refusal(404, message, param="model", code="model_not_found")
        relay_key = b"%b%x" % (self._instance, next(self._ids))
        job = Job(request, request_id, relay_key, wanted, call, model, int(time.time()))
        relay = Relay(self, client, job)
        self._relays.add(relay)
        self._retry_credit = min(self._retry_credit + RETRY_SHARE, MAX_RETRY_CREDIT)
        if ticket is not None and self.gate is not None:
            self.gate.prepare(job, ticket)
            if self._answer_again(relay, self.gate):
                return
        relay.start()

    def _answer_again(self, relay: Relay, gate: Gate) -> bool:
        """From memory, where the tenant wants that and the question has been answered."""
        kept = gate.remembered(relay.job)
        if kept is None:
            return False
        relay.finish_from_memory(kept.status)
        headers = kept.headers + b"x-request-id: %b\r\nx-penstock-cache: hit\r\n" % relay.job.request_id
        relay.client.respond(kept.status, headers, kept.body)
        return True

    def _call(self, request: Incoming, wanted: Wanted, model: str) -> RoutedCall:
        number = self._numbers.get(model, 0)
        self._numbers[model] = number + 1
        session = wanted.session or request.headers.get(b"x-session-id", b"").decode("latin-1")
        hashes: tuple[bytes, ...] = ()
        num_bytes = len(request.body)
        if self._reads_hashes and request.body:
            prompt = wanted.prompt_bytes
            num_bytes = len(prompt)
            hashes = chunk_hashes(prompt, model.encode("utf-8", "surrogatepass"))
        return RoutedCall(number, session, hashes, num_bytes // BYTES_PER_TOKEN)

    # What relays ask for

    def choose(self, relay: Relay) -> tuple[LiveReplica, ConnectionPool]:
        """Raises CapacityError where no replica takes requests."""
        job, now = relay.job, self.now()
        policy = self._policies.get(job.model)
        if policy is None:
            policy = self._policies[job.model] = POLICIES[self.config.policy](self.config.seed)
        replica, choice, views = self.fleet.choose(policy, job.call, job.model, now, relay.tried)
        job.choice = choice
        meters = self.meters
        meters.choices.add(1, (("replica", replica.name),))
        meters.blocks_expected.add(choice.num_blocks)
        meters.blocks_asked.add(len(job.call.hashes))
        if relay.tried:
            meters.retries.add()
        else:
            meters.chosen_s.add(now - job.request.arrival_s)
        if self.log is not None:
            self.log.write(now, self.config.policy, job.model, job.call, views, choice)
        return replica, self._pools[replica.name]

    def answer_headers(self, relay: Relay) -> bytes:
        """Ours, in front of a replica's."""
        job = relay.job
        why = b""
        if relay.replica is not None and job.choice is not None:
            route = f"{relay.replica.name}; why={job.choice.why}; blocks={job.choice.num_blocks}/{len(job.call.hashes)}"
            why = b"x-penstock-route: %b; tries=%d\r\n" % (route.encode("ascii", "replace"), len(relay.tried))
        return b"x-request-id: %b\r\n%b%b" % (job.request_id, why, self.access.cors(job.request))

    def fall_back(self, relay: Relay) -> bool:
        job = relay.job
        job.is_trial = False
        while job.next_models:
            job.model, *rest = job.next_models
            job.next_models = tuple(rest)
            if self.fleet.is_known(job.model):
                self.meters.fallbacks.add()
                return True
        return False

    def judge(self, relay: Relay, status: int, headers: bytes, body: bytes) -> bytes | None:
        job, gate = relay.job, self.gate
        if gate is None or status != 200:
            return body
        model = job.model
        if job.is_trial and gate.is_unsure(job, body) and self.fall_back(relay):
            job.spent.append((model, relay.count or relay.estimate))
            return None
        return gate.keep(job, status, headers, body)

    def may_retry(self) -> bool:
        if self._retry_credit < 1.0:
            return False
        self._retry_credit -= 1.0
        return True

    def park(self, relay: Relay) -> None:
        """No replica takes it now: let it wait a while."""
        if len(self._parked) >= self.config.max_parked:
            relay.refuse(
                unavailable("no replica is ready and many wait; try later", 2, code="no_replica"), RelayOutcome.REFUSED
            )
            return
        self._parked.setdefault(relay, self.now() + self.config.wait_s)

    def over(self, relay: Relay, outcome: RelayOutcome, status: int) -> None:
        """Exactly once for each."""
        self._relays.discard(relay)
        self._parked.pop(relay, None)
        meters, now, arrival_s = self.meters, self.now(), relay.job.request.arrival_s
        model = relay.job.model or "default"
        if model not in self.fleet.models:
            model = "default"  # what a client typed is no label
        meters.requests.add(1, (("model", model), ("status", str(status)), ("outcome", outcome.value)))
        if outcome is RelayOutcome.ANSWERED:
            meters.request_s.add(now - arrival_s)
            if relay.first_byte_s:
                meters.first_byte_s.add(relay.first_byte_s - arrival_s)
        ticket = relay.job.ticket
        if ticket is not None and self.gate is not None:
            counts = [*relay.job.spent, (relay.job.model, relay.count or relay.estimate)]
            spent = [Spent(name, one.num_prompt, one.num_cached, one.num_output) for name, one in counts]
            self.gate.settle(ticket, spent, outcome.value)
        if relay.count is not None:
            meters.tokens.add(relay.count.num_prompt, (("model", model), ("kind", "prompt")))
            meters.tokens.add(relay.count.num_output, (("model", model), ("kind", "output")))
            meters.tokens.add(relay.count.num_cached, (("model", model), ("kind", "cached")))

    # Every moment

    def _unpark(self) -> None:
        parked, self._parked = self._parked, {}
        for relay, until_s in parked.items():
            self._parked[relay] = until_s
            relay.tried.clear()
            self._retry_parked(relay)

    def _retry_parked(self, relay: Relay) -> None:
        try:
            replicas = self.fleet.serving(relay.job.model)
            if not any(view.is_ready for view in self.fleet.views(replicas, self.now())):
                return
        except CapacityError:
            return
        self._parked.pop(relay, None)
        relay.start()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self.now()
            for relay, until_s in tuple(self._parked.items()):
                if now >= until_s:
                    self._parked.pop(relay, None)
                    error = unavailable("no replica is ready; try again in a moment", 2, code="no_replica")
                    relay.refuse(error, RelayOutcome.REFUSED)
                else:
                    self._retry_parked(relay)
            for client in tuple(self._clients):
                if client.deadline_s is not None and now >= client.deadline_s:
                    client.abort()
            self.fleet.eject_outliers(now)
            if self.gate is not None:
                self.gate.weigh()

    def _request_id(self, request: Incoming) -> bytes:
        given = request.headers.get(b"x-request-id", b"")
        return given if given and _ID.fullmatch(given) else b"req_%b%x" % (self._instance, next(self._ids))

    def _own_answer(
        self, request: Incoming, request_id: bytes, status: int, kind: str, body: bytes
    ) -> tuple[int, bytes, bytes]:
        lines = b"content-type: %b\r\nx-request-id: %b\r\n%b" % (kind.encode(), request_id, self.access.cors(request))
        return status, lines, body
