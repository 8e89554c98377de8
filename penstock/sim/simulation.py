"""A fleet in virtual time: requests arrive, are routed, served and counted. It reads no clock and draws no random number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.config import EngineConfig
from penstock.core.request import Request
from penstock.cost.cost import Cost
from penstock.errors import EngineError
from penstock.metrics.summary import Slo, Summary, summarize
from penstock.metrics.timeline import Timeline, Timelines
from penstock.sim.clock import EventQueue
from penstock.sim.history import Sample
from penstock.sim.replica import Replica
from penstock.sizing import Sizing, make_scheduler
from penstock.workload.workload import Workload

Policy = Callable[[int, Sequence[int]], int]
"""Which replica gets a request, given how many came before it and how many each replica has pending."""


def round_robin(number: int, pending: Sequence[int]) -> int:
    return number % len(pending)


def least_pending(number: int, pending: Sequence[int]) -> int:
    """Of equals the next in turn, so that an idle fleet does not load its first replica only."""
    count = len(pending)
    return min(range(count), key=lambda replica: (pending[replica], (replica - number) % count))


POLICIES: dict[str, Policy] = {"least-pending": least_pending, "round-robin": round_robin}


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    num_requests: int
    num_steps: int
    num_computed_tokens: int
    num_preemptions: int
    busy_fraction: float
    """Share of the run in which it computed."""
    mean_running: float
    mean_waiting: float
    max_waiting: int
    mean_kv_usage_fraction: float
    max_kv_usage_fraction: float
    num_blocks: int
    history: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Result:
    summary: Summary
    replicas: tuple[ReplicaReport, ...]
    timelines: tuple[Timeline, ...]
    """In order of ending."""

    @property
    def num_steps(self) -> int:
        return sum(replica.num_steps for replica in self.replicas)

    @property
    def num_preemptions(self) -> int:
        return sum(replica.num_preemptions for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated: equal replicas behind a policy."""

    config: EngineConfig
    sizing: Sizing
    cost: Cost
    num_replicas: int = 1
    policy: Policy = least_pending
    depth: int = 1
    """Steps launched before the oldest is awaited, as in the engine."""
    foretells: bool = True
    """Skip over steps that only repeat; the result is the same without, later."""

    def replica(self, events: EventQueue, timelines: Timelines) -> Replica:
        return Replica(
            make_scheduler(self.config, self.sizing),
            self.cost,
            events,
            timelines,
            depth=self.depth,
            joins=self.config.scheduler.batching == "continuous",
            foretells=self.foretells,
        )


def simulate(fleet: Fleet, workload: Workload, slo: Slo | None = None, *, keep_times: bool = False) -> Result:
    """Serve the workload to its end. The same arguments give the same result."""
    events = EventQueue()
    timelines = Timelines(keep_times=keep_times)
    replicas = [fleet.replica(events, timelines) for _ in range(fleet.num_replicas)]

    def arrive(number: int, request: Request, now: float) -> None:
        chosen = fleet.policy(number, [replica.num_pending for replica in replicas])
        replicas[chosen].receive(request, now)

    for number, request in enumerate(workload.requests):
        events.post(request.arrival_s, partial(arrive, number, request))
    events.run()
    if timelines.num_open:
        raise EngineError(
            f"the simulation came to rest with {timelines.num_open} requests unserved: a scheduler is stuck"
        )
    duration_s = max((timeline.end_s or 0.0 for timeline in timelines.ended), default=0.0)
    summary = summarize(timelines.ended, duration_s, slo, timelines.gaps)
    reports = tuple(_report(replica, duration_s) for replica in replicas)
    return Result(summary, reports, tuple(timelines.ended))


def _report(replica: Replica, duration_s: float) -> ReplicaReport:
    history = replica.history
    return ReplicaReport(
        num_requests=replica.num_requests,
        num_steps=replica.num_steps,
        num_computed_tokens=replica.num_computed_tokens,
        num_preemptions=replica.scheduler.num_preemptions,
        busy_fraction=replica.busy_s / duration_s if duration_s > 0.0 else 0.0,
        mean_running=history.mean_running(duration_s),
        mean_waiting=history.mean_waiting(duration_s),
        max_waiting=history.max_waiting,
        mean_kv_usage_fraction=history.mean_kv_usage_fraction(duration_s),
        max_kv_usage_fraction=history.max_kv_usage_fraction,
        num_blocks=replica.scheduler.limits.num_blocks,
        history=tuple(history.samples),
    )
