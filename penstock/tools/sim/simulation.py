"""A fleet in virtual time: requests arrive, are routed, served and counted. It reads no clock; chance follows from seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.config import EngineConfig
from penstock.errors import ConfigError, EngineError
from penstock.metrics.histogram import Histogram
from penstock.metrics.summary import Slo, Summary, summarize
from penstock.metrics.timeline import Timeline, Timelines
from penstock.runtime.core.request import Request
from penstock.runtime.garbage import collection_paused
from penstock.runtime.sizing import Sizing, make_scheduler, scheduler_of, step_size
from penstock.service.cluster.scaling import Scaling
from penstock.service.router.policy import LeastPending, Policy
from penstock.tools.cost.cost import Cost, TimeVaryingCost
from penstock.tools.sim.clock import EventQueue
from penstock.tools.sim.conversation import Conversations
from penstock.tools.sim.handover import Disaggregation, Handover
from penstock.tools.sim.pool import Pool
from penstock.tools.sim.replica.adapters import AdapterShelf, ShelfRoom
from penstock.tools.sim.replica.fast_forward import FastForwardReplica
from penstock.tools.sim.replica.history import HistorySample
from penstock.tools.sim.replica.replica import Ledger, Replica
from penstock.tools.sim.replica.runs import RunScheduler
from penstock.tools.sim.replica.speculation import Guessing, Speculation
from penstock.tools.sim.tracing import SimulationTracer
from penstock.tools.workload.workload import FollowUp, Workload

NUM_MOMENTS = 8


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    name: str
    num_requests: int
    num_steps: int
    num_computed_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that its prefix cache gave, or a prefill replica sent."""
    num_preemptions: int
    num_drafted: int
    num_accepted: int
    busy_fraction: float
    """Share of its time in which it computed."""
    mean_running: float
    mean_waiting: float
    max_waiting: int
    mean_kv_usage_fraction: float
    max_kv_usage_fraction: float
    waiting_for_rows_fraction: float
    """Share of its time in which requests waited because the most sequences ran."""
    waiting_for_blocks_fraction: float
    """Likewise for want of KV blocks."""
    waiting_for_turn_fraction: float
    """Likewise for a step's token budget, or for a batch to end."""
    num_blocks: int
    seconds: float
    """From its start to its stop."""
    history: tuple[HistorySample, ...]
    num_adapter_loads: int = 0
    """Adapters read because a request asked for one that was not on the device."""


@dataclass(frozen=True, slots=True)
class Result:
    summary: Summary
    replicas: tuple[ReplicaReport, ...]
    timelines: tuple[Timeline, ...]
    """In order of ending."""
    num_refused: int = 0
    """Requests that the router refused because every replica was full. They are among the refused."""
    num_starts: int = 0
    num_stops: int = 0
    num_transfers: int = 0
    """Prompts sent from prefill to decode replicas."""
    num_lost_transfers: int = 0
    """Of those, the ones that found no room and were computed again."""
    mean_transfer_s: float = 0.0

    @property
    def num_steps(self) -> int:
        return sum(replica.num_steps for replica in self.replicas)

    @property
    def num_preemptions(self) -> int:
        return sum(replica.num_preemptions for replica in self.replicas)

    @property
    def replica_seconds(self) -> float:
        """What is paid for."""
        return sum(replica.seconds for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated: equal replicas behind a policy."""

    config: EngineConfig
    sizing: Sizing
    cost: Cost
    num_replicas: int = 1
    policy: Callable[[], Policy] = LeastPending
    """Makes the policy, fresh for every simulation."""
    depth: int = 1
    """Steps launched before the oldest is awaited, as in the engine."""
    predicts: bool = True
    """Skip steps that only repeat; the result is the same without, and takes longer."""
    guessing: Guessing | None = None
    """Drafts that every replica verifies; then steps are simulated one by one."""
    scaling: Scaling | None = None
    """How the number of replicas follows the load; then `num_replicas` is ignored."""
    split: Disaggregation | None = None
    """Further replicas that compute prompts for the others."""
    max_pending: int | None = None
    """Requests a replica may have before the router sends it no more; with all full, it refuses."""
    seed: int = 0
    """Seed that draws when a machine has its slow moments, if its cost has any."""
    shelf: ShelfRoom | None = None
    """Room for adapters, where requests ask for some."""

    def __post_init__(self) -> None:
        if self.scaling is not None and self.split is not None:
            raise ConfigError("a fleet with prefill replicas does not scale by itself; leave one of the two out")
        if self.split is not None and not self.config.cache.prefix_caching:
            raise ConfigError("keys and values are handed over through the prefix cache; leave prefix caching on")
        if self.max_pending is not None and self.max_pending < 1:
            raise ConfigError(f"a replica may have {self.max_pending} requests pending; choose 1 or more")

    @property
    def moments(self) -> tuple["Fleet", ...]:
        """The same fleet at several start moments, so that some are good and some bad; once if all moments are alike."""
        is_time_varying = isinstance(self.cost, TimeVaryingCost) and self.cost.slowdowns
        return tuple(replace(self, seed=seed) for seed in range(NUM_MOMENTS)) if is_time_varying else (self,)

    def replica(
        self, name: str, events: EventQueue, ledger: Ledger, gaps: Histogram, tracer: SimulationTracer | None = None
    ) -> Replica:
        sized = None if self.config.scheduler.tpot_target_ms is None else step_size(self.config, "cuda")
        joins = self.config.scheduler.batching == "continuous"
        shelf = None if self.shelf is None else AdapterShelf(self.shelf)
        common: dict[str, Any] = {"joins": joins, "tracer": tracer, "seed": self.seed, "shelf": shelf}
        if self.predicts and self.depth == 1 and self.guessing is None and sized is None:
            running = scheduler_of(RunScheduler, self.config, self.sizing)
            settles = self.config.scheduler.order == "fair"
            return FastForwardReplica(name, running, self.cost, events, ledger, gaps, settles=settles, **common)
        scheduler = make_scheduler(self.config, self.sizing)
        speculation = Speculation(self.guessing, name, scheduler) if self.guessing else None
        common |= {"depth": self.depth, "speculation": speculation, "step_size": sized}
        return Replica(name, scheduler, self.cost, events, ledger, gaps, **common)


def simulate(
    fleet: Fleet,
    workload: Workload | Iterable[Request],
    slo: Slo | None = None,
    *,
    keep_times: bool = False,
    tracer: SimulationTracer | None = None,
) -> Result:
    """Serve requests, which come in order of arrival, to the last. The same arguments give the same result.

    Requests are taken one by one, so that a million of them need not lie in memory.
    """
    # Nothing that ends during a simulation refers to itself; searching millions of live objects takes a fifth of the time.
    with collection_paused():
        later = workload.later if isinstance(workload, Workload) else {}
        run = SimulationRun(fleet, Timelines(keep_times=keep_times), tracer, later)
        for request in workload.requests if isinstance(workload, Workload) else workload:
            run.arrive(request)
        return run.finish(slo)


class SimulationRun:
    """One simulation under way."""

    def __init__(
        self,
        fleet: Fleet,
        timelines: Timelines,
        tracer: SimulationTracer | None,
        later: Mapping[int, Sequence[FollowUp]] | None = None,
    ) -> None:
        self._split = fleet.split
        self._timelines = timelines
        self._tracer = tracer
        self._events = EventQueue()
        self._conversations = Conversations(later, timelines, self._events, self._take) if later else None
        self._ledger: Ledger = self._conversations or timelines
        self._num_refused = 0
        self._handed: dict[int, Timeline] = {}
        """By request id: of prompts that a prefill replica computes."""
        self._moved: list[tuple[Timeline, int]] = []
        """Of those that go on elsewhere, and the tokens of each that the prefill replica's cache gave."""
        self._handovers: dict[str, Handover] = {}
        self._prefill: Pool | None = None
        split = fleet.split
        make = partial(fleet.replica, events=self._events, gaps=timelines.gaps, tracer=tracer)
        pool = partial(Pool, events=self._events, max_pending=fleet.max_pending, refuse=self._refuse)
        if split is not None:
            self._prefill = pool(
                "prefill",
                lambda name: make(name, ledger=self._handover(name, split)),
                fleet.policy(),
                num_replicas=split.num_prefill,
                prepare=lambda replica, request: self._handovers[replica.name].shorten(request),
            )
        self._pool = pool(
            "decode" if fleet.split else "replica",
            partial(make, ledger=self._ledger),
            fleet.policy(),
            num_replicas=fleet.num_replicas,
            scaling=fleet.scaling,
        )

    def arrive(self, request: Request) -> None:
        """A request arrives, after everything that happens before it."""
        self._events.run_before(request.arrival_s)
        self._take(request, request.arrival_s)

    def _take(self, request: Request, now: float) -> None:
        if self._conversations is not None:
            self._conversations.begin(request)
        group = group_of(request)
        timeline = self._timelines.arrive(request.request_id, now, len(request.prompt), request.params.n, group)
        if self._prefill is not None and self._hands_over(request, self._prefill, now):
            self._handed[request.request_id] = timeline
            self._prefill.submit(request, now)
        else:
            self._pool.submit(request, now)

    def _hands_over(self, request: Request, prefill: Pool, now: float) -> bool:
        split = self._split
        if split is None or split.is_local(request):
            return False
        waiting_s = min((one.waiting_s(now) for one in self._handovers.values()), default=0.0)
        return not split.follows_rule or split.pays(request, prefill, self._pool, waiting_s)

    def finish(self, slo: Slo | None) -> Result:
        """No more requests arrive: serve those present, and count."""
        conversations = self._conversations
        self._pool.has_more = (lambda: False) if conversations is None else conversations.has_more
        self._events.run()
        timelines = self._timelines
        if timelines.num_open:
            raise EngineError(f"the simulation ended with {timelines.num_open} requests unserved: a scheduler is stuck")
        for timeline, num_cached in self._moved:
            timeline.num_cached = num_cached
        end_s = max((timeline.end_s or 0.0 for timeline in timelines.ended), default=0.0)
        members = [*(self._prefill.members if self._prefill else ()), *self._pool.members]
        handovers = self._handovers.values()
        num_transfers = sum(one.num_transfers for one in handovers)
        if self._tracer is not None:
            self._tracer.requests(timelines.ended)
        return Result(
            summarize(timelines.ended, end_s, slo, timelines.gaps),
            tuple(_report(replica, end_s) for replica in members),
            tuple(timelines.ended),
            num_refused=self._num_refused,
            num_starts=self._pool.num_starts,
            num_stops=self._pool.num_stops,
            num_transfers=num_transfers,
            num_lost_transfers=sum(replica.num_lost_transfers for replica in members),
            mean_transfer_s=sum(one.transfer_s for one in handovers) / num_transfers if num_transfers else 0.0,
        )

    def _handover(self, name: str, split: Disaggregation) -> Handover:
        self._handovers[name] = Handover(split, self._ledger, self._events, self._go_on)
        return self._handovers[name]

    def _go_on(self, request: Request, now: float) -> None:
        """A prompt's KV has arrived: what the replica finds of it is not cached, it was computed."""
        timeline = self._handed[request.request_id]
        self._moved.append((timeline, timeline.num_cached))
        self._pool.submit(request, now, is_moved=True)

    def _refuse(self, request: Request, now: float) -> None:
        self._num_refused += 1
        self._ledger.refuse(request.request_id, now)


def group_of(request: Request) -> str:
    """The groups a request is counted in: its tenant, and its priority where it has one."""
    urgency = f"priority {request.priority}" if request.priority else ""
    return ", ".join(filter(None, (request.tenant, urgency)))


def _report(replica: Replica, end_s: float) -> ReplicaReport:
    history, speculation = replica.history, replica.speculation
    seconds = max(0.0, (end_s if replica.stopped_s is None else replica.stopped_s) - replica.ordered_s)
    share = 1.0 / seconds if seconds > 0.0 else 0.0
    running, waiting, kv_usage_fraction = history.means(seconds)
    return ReplicaReport(
        name=replica.name,
        num_requests=replica.num_requests,
        num_steps=replica.num_steps,
        num_computed_tokens=replica.num_computed_tokens,
        num_prompt_tokens=replica.num_prompt_tokens,
        num_cached_tokens=replica.num_cached_tokens,
        num_preemptions=replica.scheduler.num_preemptions,
        num_drafted=speculation.proposals.num_checked if speculation else 0,
        num_accepted=speculation.proposals.num_accepted if speculation else 0,
        busy_fraction=replica.busy_s * share,
        mean_running=running,
        mean_waiting=waiting,
        max_waiting=history.max_waiting,
        mean_kv_usage_fraction=kv_usage_fraction,
        max_kv_usage_fraction=history.max_kv_usage_fraction,
        waiting_for_rows_fraction=history.waiting_for_rows_s * share,
        waiting_for_blocks_fraction=history.waiting_for_blocks_s * share,
        waiting_for_turn_fraction=history.waiting_for_turn_s * share,
        num_blocks=replica.scheduler.limits.num_blocks,
        seconds=seconds,
        history=tuple(history.samples),
        num_adapter_loads=0 if replica.shelf is None else replica.shelf.num_loads,
    )
