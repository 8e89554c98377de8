"""Requests under way: which replica each goes to, which wait for one, what retries are left, and how each ended.

What a relay asks of the router (`proxy/host.py`) is answered here; it decides by `policy.py`, `fleet.py` and the gate.
"""

import time
from collections.abc import Callable

from penstock.errors import CapacityError
from penstock.service.config import RouterConfig
from penstock.service.edge.access import Access
from penstock.service.edge.refusal import unavailable
from penstock.service.gateway.limits import Denied
from penstock.service.gateway.ticket import Spent
from penstock.service.marks import TokenBound
from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.service.router.gate import Gate, refusal_of
from penstock.service.router.kept.holders import Holders
from penstock.service.router.members import Members
from penstock.service.router.meters import RouterMeters
from penstock.service.router.policy import POLICIES, REPORTED_POLICIES, Policy, RouteChoice
from penstock.service.router.proxy.incoming import Incoming
from penstock.service.router.proxy.job import Job, RelayOutcome
from penstock.service.router.proxy.prefill import Handovers
from penstock.service.router.proxy.relay import Relay
from penstock.service.router.record import DecisionLog

RETRY_SHARE = 0.1
"""Retries a request earns for all: so many at most however much fails."""
MAX_RETRY_CREDIT = 100.0
FIRST_RETRY_CREDIT = 10.0
MAX_ENLARGED = 4
"""Times that more money is set aside for one request, as servers say what it may take."""


class Dispatcher:
    """Owns the requests under way. Lives on the router's event loop."""

    def __init__(
        self, config: RouterConfig, fleet: LiveFleet, access: Access, gate: Gate | None, run: Callable[..., object]
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.access = access
        self.gate = gate
        self.is_metered = gate is not None
        self.meters = RouterMeters(fleet, config.policy, lambda: len(self.parked), lambda: len(self.relays))
        self.log: DecisionLog | None = DecisionLog(config.route_log) if config.route_log else None
        self.members: Members
        self.holders = Holders()
        self.relays: set[Relay] = set()
        self.parked: dict[Relay, float] = {}
        """Requests that wait for a replica, and until when."""
        self.follows_blocks = config.policy in REPORTED_POLICIES
        """Replicas say what their caches hold, and of what blocks a prompt is made."""
        self.reads_chunks = POLICIES[config.policy](config.seed).reads_hashes and not self.follows_blocks
        self.handovers = Handovers(self, config.handover)
        self._policies: dict[str, Policy] = {}
        self._run = run
        self._retry_credit = FIRST_RETRY_CREDIT

    now = staticmethod(time.monotonic)

    def enter(self, relay: Relay) -> None:
        self.relays.add(relay)
        self._retry_credit = min(self._retry_credit + RETRY_SHARE, MAX_RETRY_CREDIT)

    # Whom to ask

    def choose(self, relay: Relay) -> LiveReplica:
        """Raises CapacityError where no replica takes requests."""
        job, now = relay.job, self.now()
        if job.holder:
            replica, job.choice = self._holder(job), RouteChoice(0, "keeps what is asked for")
        else:
            policy = self._policies.get(job.model)
            if policy is None:
                policy = self._policies[job.model] = POLICIES[self.config.policy](self.config.seed)
            replica, job.choice, views = self.fleet.choose(policy, job.call, job.model, now, relay.tried)
            if self.log is not None:
                self.log.write(now, self.config.policy, job.model, job.call, views, job.choice)
        meters = self.meters
        meters.choices.add(1, (("replica", replica.name),))
        if job.call.hashes:
            meters.blocks_expected.add(job.choice.num_blocks)
            meters.blocks_asked.add(len(job.call.hashes))
        if relay.tried:
            meters.retries.add()
        else:
            meters.chosen_s.add(now - job.request.arrival_s)
        if not relay.has_begun:
            self.handovers.begin(job, replica, relay.tried)
        return replica

    def _holder(self, job: Job) -> LiveReplica:
        """No other replica can answer: until it is back the request waits."""
        replica = self.fleet.get(job.holder)
        if replica is None or replica.state is not ReplicaState.READY:
            raise CapacityError(f"the replica {job.holder} keeps this and is not ready; try later")
        return replica

    def answer_headers(self, relay: Relay) -> bytes:
        """Ours, in front of a replica's."""
        job = relay.job
        why = b""
        if relay.replica is not None and job.choice is not None:
            route = f"{relay.replica.name}; why={job.choice.why}; blocks={job.choice.num_blocks}/{len(job.call.hashes)}"
            why = b"x-penstock-route: %b; tries=%d\r\n" % (route.encode("ascii", "replace"), len(relay.tried))
        lines = b"x-request-id: %b\r\n%b%b" % (job.request.request_id, why, self.cors(job.request))
        if job.ticket is None:
            return lines
        return lines + b"".join(b"%b: %b\r\n" % pair for pair in job.ticket.meter.headers(self.now()))

    def cors(self, request: Incoming) -> bytes:
        """Header lines that let a page we know read the answer."""
        if b"origin" not in request.headers:
            return b""
        return b"".join(b"%b: %b\r\n" % pair for pair in self.access.cors(request.headers))

    # When something goes wrong

    def note_failure(self, replica: LiveReplica, message: str, *, is_gone: bool) -> None:
        self.meters.failures.add(1, (("replica", replica.name),))
        if is_gone and self.fleet.set_state(replica, ReplicaState.GONE, self.now()):
            self.changed(replica)
        self.members.hurry(replica)

    def changed(self, replica: LiveReplica) -> None:
        """A replica went, fell silent, or came back."""
        if replica.state is ReplicaState.GONE:
            for relay in tuple(self.relays):
                relay.lose_replica(replica, "the replica does not answer any more")
        elif replica.is_silent:
            for relay in tuple(self.relays):
                if relay.can_move and self._has_free(relay, replica):
                    relay.lose_replica(replica, "the replica is silent")
        elif replica.state is ReplicaState.READY:
            self.unpark()

    def _has_free(self, relay: Relay, silent: LiveReplica) -> bool:
        now = self.now()
        return any(one is not silent and self.fleet.takes(one, now) for one in self.fleet.serving(relay.job.model))

    def may_retry(self) -> bool:
        if self._retry_credit < 1.0:
            return False
        self._retry_credit -= 1.0
        return True

    def overflow(self, relay: Relay) -> None:
        job = relay.job
        if not job.next_models or job.is_trial:
            return
        now, most_s = self.now(), self.gate.gateway.settings.max_wait_s if self.gate is not None else 0.0
        if self.fleet.wait_s(job.model, now) <= most_s:
            return
        for place, model in enumerate(job.next_models):
            if self.fleet.wait_s(model, now) <= most_s:
                job.model, job.next_models = model, job.next_models[place + 1 :]
                self.meters.fallbacks.add()
                return

    # Requests that wait for a replica

    def park(self, relay: Relay) -> None:
        """No replica takes it now: let it wait a while."""
        if len(self.parked) >= self.config.max_parked:
            relay.refuse(
                unavailable("no replica is ready and many wait; try later", 2, code="no_replica"), RelayOutcome.REFUSED
            )
            return
        self.parked.setdefault(relay, self.now() + self.config.wait_s)

    def unpark(self) -> None:
        parked, self.parked = self.parked, {}
        for relay, until_s in parked.items():
            self.parked[relay] = until_s
            relay.tried.clear()
            self._retry_parked(relay)

    def sweep(self, now: float) -> None:
        """Try those that wait again; refuse those that waited long enough."""
        for relay, until_s in tuple(self.parked.items()):
            if now >= until_s:
                self.parked.pop(relay, None)
                if self._searches_instead(relay):
                    continue
                error = unavailable("no replica is ready; try again in a moment", 2, code="no_replica")
                relay.refuse(error, RelayOutcome.REFUSED)
            else:
                self._retry_parked(relay)

    def _searches_instead(self, relay: Relay) -> bool:
        """The replica that kept it has left the fleet for good; it may be back under another name."""
        job = relay.job
        if not job.holder or self.fleet.get(job.holder) is not None:
            return False
        job.holder, job.is_searched = "", True
        relay.start()
        return True

    def _retry_parked(self, relay: Relay) -> None:
        if relay.job.holder:
            holder = self.fleet.get(relay.job.holder)
            can_start = holder is not None and holder.state is ReplicaState.READY
        else:
            replicas = self.fleet.serving(relay.job.model)
            can_start = any(view.is_ready for view in self.fleet.views(replicas, self.now()))
        if can_start:
            self.parked.pop(relay, None)
            relay.start()

    def learn_ids(self, relay: Relay, answer: bytes) -> None:
        if relay.replica is not None:
            self.holders.learn(relay.replica.name, relay.job.tenant, answer)

    # How they end

    def judge(self, relay: Relay, status: int, headers: bytes, body: bytes) -> bytes | None:
        job, gate = relay.job, self.gate
        if gate is None or status != 200:
            return body
        model = job.model
        if job.is_trial and gate.is_unsure(job, body) and relay.fall_back():
            job.spent.append((model, relay.count or relay.estimate))
            return None
        return gate.keep(job, status, headers, body)

    def _settle(self, relay: Relay, gate: Gate, outcome: RelayOutcome, status: int) -> None:
        """By its own count, where it was answered; by the server's bill, where that makes tokens later or nobody listened."""
        job, ticket = relay.job, relay.job.ticket
        if ticket.ask.later and outcome is RelayOutcome.ANSWERED and status < 300:
            gate.settle_later(ticket, ticket.ask.later)
        elif outcome is RelayOutcome.LEFT and relay.tried and not ticket.ask.is_free and self._bills(relay.tried[-1]):
            gate.settle_later(ticket, "left")
        else:
            counts = [*job.spent, (job.model, relay.count or relay.estimate)]
            spent = [Spent(name, one.num_prompt, one.num_cached, one.num_output) for name, one in counts]
            gate.settle(ticket, spent, outcome.value)

    def _bills(self, name: str) -> bool:
        """The replica sends bills: it believes us for whom we ask."""
        replica = self.fleet.get(name)
        return replica is not None and self.members.pool(replica).keeps_tenants

    def asks_more(self, relay: Relay, needs: TokenBound) -> bool:
        ticket = relay.job.ticket
        if ticket is None or self.gate is None or ticket.is_settled or relay.job.num_enlarged >= MAX_ENLARGED:
            return False
        relay.job.num_enlarged += 1
        self._run(self._enlarge(relay, self.gate, needs))
        return True

    async def _enlarge(self, relay: Relay, gate: Gate, needs: TokenBound) -> None:
        try:
            await gate.enlarge(relay.job.ticket, needs)
        except Denied as denied:
            relay.refuse(refusal_of(denied), RelayOutcome.REFUSED)
            return
        if not relay.is_over:
            relay.tried.clear()
            relay.start()

    def over(self, relay: Relay, outcome: RelayOutcome, status: int) -> None:
        """Exactly once for each."""
        self.relays.discard(relay)
        self.handovers.end(relay.job)
        self.parked.pop(relay, None)
        meters, now, arrival_s = self.meters, self.now(), relay.job.request.arrival_s
        model = relay.job.model or "default"
        if model not in self.fleet.models:
            model = "default"  # what a client typed is no label
        meters.requests.add(1, (("model", model), ("status", str(status)), ("outcome", outcome.value)))
        if outcome is RelayOutcome.ANSWERED:
            meters.request_s.add(now - arrival_s)
            if relay.first_byte_s:
                meters.first_byte_s.add(relay.first_byte_s - arrival_s)
        if relay.job.trace is not None:
            relay.job.trace.end(outcome.value, status, relay.count, now)
        if relay.job.ticket is not None and self.gate is not None:
            self._settle(relay, self.gate, outcome, status)
        if relay.count is not None:
            for kind, count in zip(("prompt", "output", "cached"), relay.count):
                meters.tokens.add(count, (("model", model), ("kind", kind)))
