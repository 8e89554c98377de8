"""One engine in virtual time: the engine's own scheduler, with a cost model in place of a device.

It follows the engine's loop: read the inbox, schedule, launch, and wait for the oldest step. Where the engine would wait
for the device it posts an event; there the other half runs, `commit` with as many tokens as were drawn. This one does so
step by step; `fast_forward.FastForwardReplica` gives the same results with less work.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.errors import CapacityError, RequestError
from penstock.metrics.histogram import Histogram
from penstock.runtime.core.batch import Batch, Delta, StepOutput, make
from penstock.runtime.core.limits import StepSize
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import Scheduler
from penstock.service.router.policy import ReplicaView
from penstock.tools.cost.cost import Cost, TimeVaryingCost
from penstock.tools.cost.measured.slowdown import SlowdownTrace
from penstock.tools.cost.measured.warmth import Warmth
from penstock.tools.sim.clock import EventQueue
from penstock.tools.sim.replica.adapters import AdapterShelf
from penstock.tools.sim.replica.history import History
from penstock.tools.sim.replica.speculation import Speculation
from penstock.tools.sim.tracing import SimulationTracer
from penstock.tools.workload.workload import ANSWERED

TOKEN = ANSWERED
"""The token a simulated model always draws."""


class Ledger(Protocol):
    """Receives what happens to requests: `metrics.timeline.Timelines`, or one in front of it."""

    def refuse(self, request_id: int, now: float) -> None: ...

    def observe(self, deltas: Sequence[Delta], now: float) -> None: ...

    def observe_run(self, delta: Delta, times: Sequence[float]) -> None: ...


class StepInFlight(NamedTuple):
    """A launched batch."""

    batch: Batch
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class Replica:
    """`depth` is the engine's: steps launched before the oldest is awaited. `joins` says that batches admit newcomers;
    `seed` draws when the machine has slow moments."""

    name: str
    scheduler: Scheduler
    cost: Cost
    events: EventQueue
    ledger: Ledger
    gaps: Histogram
    """Between tokens: of those that the ledger is not told one by one."""
    depth: int = 1
    joins: bool = True
    speculation: Speculation | None = None
    step_size: StepSize | None = None
    tracer: SimulationTracer | None = None
    seed: int = 0
    history: History = field(init=False)
    shelf: AdapterShelf | None = None
    """Where adapters lie, where requests ask for some."""
    num_requests: int = 0
    num_steps: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    """Of sequences admitted, once for every epoch."""
    num_cached_tokens: int = 0
    """Of those, what the prefix cache gave."""
    busy_s: float = 0.0
    is_ready: bool = True
    """It takes requests: it has started and is not being drained."""
    is_started: bool = True
    ordered_s: float = 0.0
    stopped_s: float | None = None
    """Its time in a pool, which decides on it."""
    num_lost_transfers: int = 0
    """Prompts whose KV arrived and found no room."""
    last_view: ReplicaView | None = None
    """What `view` gave last, while it is still true."""
    _num_held: int = 0
    """Requests that wait for their adapter."""
    _inbox: list[Request] = field(default_factory=list)
    _flights: deque[StepInFlight] = field(default_factory=deque)
    _num_step_tokens: int = 0
    """Of the step launched last."""
    _alarm_s: float | None = None
    """When the loop wakes although nothing happens."""
    _time_varying: TimeVaryingCost | None = None
    _warmth: Warmth | None = None

    def __post_init__(self) -> None:
        self.history = History(self.scheduler.limits, self.joins)
        cost = self.cost
        if isinstance(cost, TimeVaryingCost) and (cost.cooling is not None or cost.slowdowns):
            trace = SlowdownTrace(cost.slowdowns, f"{self.seed} weather {self.name}") if cost.slowdowns else None
            self._time_varying, self._warmth = cost, Warmth(cost.cooling, trace)

    @property
    def num_pending(self) -> int:
        """Generations handed over that have not ended."""
        scheduler = self.scheduler
        return scheduler.num_running + scheduler.num_waiting + len(self._inbox) + self._num_held

    @property
    def num_queued(self) -> int:
        """Of those, the ones that have not begun."""
        return self.scheduler.num_waiting + len(self._inbox) + self._num_held

    @property
    def view(self) -> ReplicaView:
        """What a router sees of it; made again only after something happened."""
        if self.last_view is None:
            load = self.scheduler.load
            waiting = load.num_waiting_tokens + sum([len(request.prompt) for request in self._inbox])
            usage = self._usage(load.kv_usage_fraction)
            num_pending = load.num_running + load.num_waiting + len(self._inbox) + self._num_held
            published = self.scheduler.pool.published
            self.last_view = make(ReplicaView, (self.name, num_pending, waiting, usage, self.is_ready, published, 0.0))
        return self.last_view

    def set_ready(self, is_ready: bool) -> None:
        """It takes requests: it has started and is not being drained."""
        self.is_ready = is_ready
        self.last_view = None

    def receive(self, request: Request, now: float) -> None:
        """Hand over a request. A loop that waits for a step reads it afterwards."""
        self.num_requests += 1
        ready_s = now if self.shelf is None else self.shelf.ask(request.adapter, now)
        self._num_held += 1
        if ready_s > now:
            self.last_view = None
            self.events.post(ready_s, lambda then: self._let_in(request, then))
        else:
            self._let_in(request, now)

    def _let_in(self, request: Request, now: float) -> None:
        """A request whose adapter is there."""
        self._num_held -= 1
        self.last_view = None
        self._inbox.append(request)
        self._look(now)

    def take_over(self, request: Request, now: float) -> None:
        """Hand over a request whose prompt was computed elsewhere and whose KV has arrived."""
        has_blocks = len(request.prompt) >= self.scheduler.limits.block_size
        if not self.scheduler.adopt(request) and has_blocks:
            self.num_lost_transfers += 1
        self.receive(request, now)

    def _look(self, now: float) -> None:
        """Something happened: an idle loop wakes."""
        if not self._flights:
            self.events.post(now, self._wake)

    def _wake(self, now: float) -> None:
        """After all events of this moment: requests that arrive together are admitted together."""
        if not self._flights:
            self._loop(now)

    def _loop(self, now: float) -> None:
        """Run up to where the engine waits."""
        self.last_view = None
        self._take_in(now)
        scheduler = self.scheduler
        expired = scheduler.expire(now)
        if expired:
            self.ledger.observe(expired, now)
        while len(self._flights) < self.depth:
            if self.speculation is not None:
                if self._flights and self.speculation.proposals.waits:
                    break
                self.speculation.propose()
            batch = scheduler.schedule(now)
            if batch is None:
                break
            self._launch(batch, now)
        self._note(now)
        if self._flights:
            self.events.post(self._flights[0].end_s, self._complete)

    def _take_in(self, now: float) -> None:
        inbox, self._inbox = self._inbox, []
        for request in inbox:
            try:
                self.scheduler.add(request, now)
            except (RequestError, CapacityError):
                self.ledger.refuse(request.request_id, now)

    def _launch(self, batch: Batch, now: float) -> None:
        """The device computes one step at a time: a step starts when the one before it ends."""
        start_s = self._flights[-1].end_s if self._flights else now
        for chunk in batch.chunks:
            if chunk.arrival is not None:
                self.num_prompt_tokens += chunk.arrival.prompt_length
                self.num_cached_tokens += min(chunk.start, chunk.arrival.prompt_length)
        self._num_step_tokens = batch.num_tokens
        (duration_s,) = self._run_s(batch, start_s, 1)
        if self._warmth is not None:
            self._warmth.take(1)
        if self.speculation is not None:
            duration_s += self.speculation.draft_s(batch, self.cost)
        self._flights.append(StepInFlight(batch, start_s, start_s + duration_s))

    def _run_s(self, batch: Batch, start_s: float, num_steps: int) -> list[float]:
        """Seconds of each of a run of steps that begins then."""
        durations = self.cost.run_s(batch, num_steps)
        if self._warmth is None or self._time_varying is None:
            return durations
        return self._warmth.predict(start_s, durations, self._time_varying.cold_s(batch, num_steps))

    def _complete(self, now: float) -> None:
        """The oldest step has ended."""
        batch, start_s, _ = self._flights.popleft()
        if self.speculation is not None:
            output = self.speculation.output(batch)
        else:
            output = StepOutput(tuple([(TOKEN,) if chunk.samples else () for chunk in batch.chunks]))
        if self.step_size is not None:
            scheduler = self.scheduler
            sized = self.step_size.resize(scheduler.limits, batch, now - start_s, is_shared=scheduler.is_shared)
            scheduler.resize(sized)
        deltas = self.scheduler.commit(batch, output, now)
        self.scheduler.note_step(batch, now - start_s)
        self.ledger.observe(deltas, now)
        if self.speculation is not None:
            self.speculation.take(batch, now - start_s, deltas)
        self.num_steps += 1
        self.num_computed_tokens += batch.num_tokens
        self.busy_s += now - start_s
        if self.tracer is not None:
            num_prompt = sum([chunk.length for chunk in batch.chunks if not chunk.samples or chunk.token_ids])
            self.tracer.steps(self.name, start_s, now, 1, len(batch.chunks), num_prompt)
        self._loop(now)

    def _note(self, now: float) -> None:
        """Record how busy it is, and set an alarm for the next deadline, or for a batch that will open."""
        scheduler = self.scheduler
        load = scheduler.load
        is_step_full = self._num_step_tokens >= scheduler.limits.max_batch_tokens
        self.history.add(load, now, self._usage(load.kv_usage_fraction), is_step_full=is_step_full)
        if self.tracer is not None:
            self.tracer.load(self.name, now, load)
        wake_s = scheduler.wake_s
        if wake_s is not None and wake_s > now and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self.events.post(wake_s, self._ring)

    def _usage(self, held_fraction: float) -> float:
        """Share of the cache in use, given what the pool counts as held."""
        return held_fraction

    def _ring(self, now: float) -> None:
        """Of several alarms only the one set last counts."""
        if now == self._alarm_s:
            self._alarm_s = None
            self._look(now)
