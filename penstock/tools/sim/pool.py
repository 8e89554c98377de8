"""Equal replicas behind a policy: which gets a request, which requests wait for a replica to start, how many replicas there
are."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.runtime.core.prefix import Namespace, block_hash, packed
from penstock.runtime.core.request import Request
from penstock.service.cluster.scaling import ArrivalTrend, Pressure, Scaler, Scaling, ServedRate
from penstock.service.router.policy import Policy, ReplicaView, RoutedCall
from penstock.tools.sim.clock import EventQueue
from penstock.tools.sim.replica.replica import Replica

MakeReplica = Callable[[str], Replica]


@dataclass(slots=True)
class Pool:
    kind: str
    make: MakeReplica
    policy: Policy
    events: EventQueue
    refuse: Callable[[Request, float], None]
    num_replicas: int
    max_pending: int | None = None
    scaling: Scaling | None = None
    prepare: Callable[[Replica, Request], Request] | None = None
    """Gives the request that a chosen replica serves in place of the original."""
    members: list[Replica] = field(default_factory=list)
    """All that ever were."""
    num_starts: int = 0
    num_stops: int = 0
    has_more: Callable[[], bool] = lambda: True
    """More requests may arrive."""
    _queue: deque[tuple[Request, bool]] = field(default_factory=deque)
    """Requests that wait for a replica to start."""
    _num_calls: int = 0
    _live: list[Replica] = field(default_factory=list)
    _busy_s: float = 0.0
    _scaler: Scaler | None = None
    _served: ServedRate = field(default_factory=ServedRate)
    _trend: ArrivalTrend = field(default_factory=ArrivalTrend)

    def __post_init__(self) -> None:
        for _ in range(self.scaling.min_replicas if self.scaling else self.num_replicas):
            self._start(0.0, 0.0)
        self.num_starts = 0
        if self.scaling:
            self._scaler = Scaler(self.scaling)
            self.events.post(self.scaling.interval_s, self._review)

    @property
    def num_pending(self) -> int:
        return sum(replica.num_pending for replica in self._live) + len(self._queue)

    @property
    def least_busy(self) -> ReplicaView:
        """The replica with the fewest requests, as a policy sees it."""
        views = [replica.last_view or replica.view for replica in self._live]
        return min(views, key=lambda view: (view.num_pending, view.num_waiting_tokens))

    def submit(self, request: Request, now: float, *, is_moved: bool = False) -> None:
        """Hand a request to a replica; `is_moved` says that its KV comes with it."""
        live = self._live
        if not any(replica.is_ready for replica in live):
            self._queue.append((request, is_moved))
            return
        views = [replica.last_view or replica.view for replica in live]
        if self.max_pending is not None:
            views = [view if view.num_pending < self.max_pending else view._replace(is_ready=False) for view in views]
            if not any(view.is_ready for view in views):
                self.refuse(request, now)
                return
        hashes = self._hashes(request, live[0].scheduler.limits.block_size) if self.policy.reads_hashes else ()
        choice = self.policy.choose(
            RoutedCall(self._num_calls, request.session or request.tenant, hashes, len(request.prompt)), views
        )
        self._num_calls += 1
        chosen = live[choice.replica]
        if self.prepare is not None:
            request = self.prepare(chosen, request)
        if is_moved:
            chosen.take_over(request, now)
        else:
            chosen.receive(request, now)

    def _hashes(self, request: Request, block_size: int) -> tuple[bytes, ...]:
        parent = Namespace(request.salt, request.adapter).hash
        hashes = []
        for start in range(0, len(request.prompt) - block_size, block_size):
            parent = block_hash(parent, packed(request.prompt[start : start + block_size]))
            hashes.append(parent)
        return tuple(hashes)

    # How many

    def _start(self, now: float, ready_s: float) -> None:
        replica = self.make(f"{self.kind} {len(self.members)}")
        replica.ordered_s, replica.is_started = now, ready_s <= now
        self.members.append(replica)
        self._live.append(replica)
        self.num_starts += 1
        if not replica.is_started:
            replica.set_ready(False)
            self.events.post(ready_s, lambda at_s: self._come_up(replica, at_s))

    def _come_up(self, replica: Replica, now: float) -> None:
        replica.is_started = True
        if replica.stopped_s is None:
            replica.set_ready(True)
            queue, self._queue = self._queue, deque()
            for request, is_moved in queue:
                self.submit(request, now, is_moved=is_moved)

    def _review(self, now: float) -> None:
        """Check whether there are too few replicas or too many."""
        scaling, scaler = self.scaling, self._scaler
        if scaling is None or scaler is None:
            return
        self._stop_drained(now)
        wanted_ones = [one for one in self._live if one.is_ready or not one.is_started]
        busy_s = sum(replica.busy_s for replica in self.members)
        busy_fraction = (busy_s - self._busy_s) / scaling.interval_s / max(1, len(wanted_ones))
        self._busy_s = busy_s
        pressure = self._pressure(now)
        wanted = scaler.wanted(len(wanted_ones), self.num_pending, min(1.0, busy_fraction), now, pressure)
        for _ in range(wanted - len(wanted_ones)):
            self._start(now, now + scaling.cold_start_s)
        if wanted < len(wanted_ones):
            wanted_ones[-1].set_ready(False)
            wanted_ones[-1].is_started = True
            self._stop_drained(now)
        if self.has_more() or self.num_pending:
            self.events.post(now + scaling.interval_s, self._review)

    def _pressure(self, now: float) -> Pressure:
        views = [replica.view for replica in self._live]
        ready = [view for view in views if view.is_ready]
        kv_fraction = sum(view.kv_usage_fraction for view in ready) / max(len(ready), 1)
        num_waiting = sum(replica.num_queued for replica in self._live) + len(self._queue)
        num_pending = sum(view.num_pending for view in views)
        served_per_s = self._served.note(
            self._num_calls - num_pending,
            len(ready),
            now,
            is_full=num_waiting > len(ready),
            num_pending=num_pending,
        )
        return Pressure(
            kv_fraction, num_waiting, served_per_s, *self._trend.note(self._num_calls + len(self._queue), now)
        )

    def _stop_drained(self, now: float) -> None:
        for replica in self._live:
            if replica.is_started and not replica.is_ready and not replica.num_pending:
                replica.stopped_s = now
                self.num_stops += 1
        self._live = [replica for replica in self._live if replica.stopped_s is None]
