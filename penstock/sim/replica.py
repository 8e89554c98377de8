"""One engine in virtual time: the engine's own scheduler, with a cost model in place of a device.

It follows the engine's loop: take in what was handed over, schedule, launch, and wait for the oldest step. Where the engine
would wait for the device it posts an event; there the other half runs, `commit` with as many tokens as were drawn.

Steps that only repeat are foretold: when nothing can change before some sequence ends, the scheduler is handed drafts for
that many steps and plans them as one batch. Every draft comes true, each at the time at which its own step would have ended.
If something happens meanwhile, the run is cut after the step under way and the rest of the drafts is rejected.
"""

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from penstock.core.batch import Arrival, Batch, StepOutput
from penstock.core.request import Request
from penstock.core.scheduler import Scheduler
from penstock.cost.cost import Cost
from penstock.errors import CapacityError, RequestError
from penstock.metrics.timeline import Timelines
from penstock.sim.clock import EventQueue
from penstock.sim.history import History

_TOKEN = 0
"""What a simulated model says, always."""
_MIN_RUN = 3
"""Shorter runs save nothing."""


class Flight(NamedTuple):
    """A launched batch, and when each of its steps ends: one step, or a run of them that was foretold."""

    batch: Batch
    num_tokens: int
    """Of its first step."""
    start_s: float
    ends: list[float]


class Replica:
    """`depth` is the engine's: steps launched before the oldest is awaited. Only at depth 1 are runs foretold.

    `joins` says that sequences may join a batch that is running.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: Cost,
        events: EventQueue,
        timelines: Timelines,
        *,
        depth: int = 1,
        joins: bool = True,
        foretells: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.history = History()
        self.num_requests = 0
        self.num_steps = 0
        self.num_computed_tokens = 0
        self.busy_s = 0.0
        self._cost = cost
        self._events = events
        self._timelines = timelines
        self._depth = depth
        self._joins = joins
        self._foretells = foretells and depth == 1
        self._inbox: list[Request] = []
        self._flights: deque[Flight] = deque()
        self._lengths: dict[int, int | None] = {}
        """Of the sequence in each row, the length at which it ends, where that can be told."""
        self._alarm_s: float | None = None
        """When the loop will look again though nothing happens."""

    @property
    def num_pending(self) -> int:
        """Generations handed over that have not ended."""
        load = self.scheduler.load
        return load.num_running + load.num_waiting + len(self._inbox)

    def receive(self, request: Request, now: float) -> None:
        """Hand over a request. A loop that waits for a step takes it in afterwards."""
        self.num_requests += 1
        self._timelines.arrive(request.request_id, request.arrival_s, len(request.prompt), request.params.n)
        self._inbox.append(request)
        self._look(now)

    def _look(self, now: float) -> None:
        """Something happened: an idle loop wakes, a run under way ends with the step under way."""
        if not self._flights:
            self._events.post(now, self._wake)
            return
        ends = self._flights[0].ends
        num_steps = bisect_left(ends, now) + 1
        if num_steps < len(ends):
            del ends[num_steps:]
            self._events.post(ends[-1], self._complete)

    def _wake(self, now: float) -> None:
        """After all that happens at this moment: requests that come together are taken in together."""
        if not self._flights:
            self._loop(now)

    def _loop(self, now: float) -> None:
        """Up to where the engine waits."""
        self._take_in(now)
        scheduler = self.scheduler
        expired = scheduler.expire(now)
        if expired:
            self._timelines.observe(expired, now)
        while len(self._flights) < self._depth:
            batch = scheduler.schedule(now)
            if batch is None:
                break
            self._launch(batch, now)
        self.history.add(scheduler.load, now)
        if self._flights:
            self._events.post(self._flights[0].ends[-1], self._complete)
        self._set_alarm(now)

    def _take_in(self, now: float) -> None:
        inbox, self._inbox = self._inbox, []
        for request in inbox:
            try:
                self.scheduler.add(request, now)
            except (RequestError, CapacityError):
                self._timelines.refuse(request.request_id, now)

    def _launch(self, batch: Batch, now: float) -> None:
        """The device computes one step at a time: a step starts when the one before it ends."""
        start_s = end_s = self._flights[-1].ends[-1] if self._flights else now
        ends = []
        num_drafts = min([chunk.num_drafts for chunk in batch.chunks])
        for chunk in batch.chunks:
            if chunk.arrival is not None:
                self._lengths[chunk.row] = self._length(chunk.arrival)
        first = _without_drafts(batch)
        for duration_s in self._cost.run_s(first, 1 + num_drafts):
            end_s += duration_s
            ends.append(end_s)
        self._flights.append(Flight(batch, first.num_tokens, start_s, ends))

    def _complete(self, now: float) -> None:
        """A step or a run has ended; or an event came that was posted before its run was cut."""
        if not self._flights or self._flights[0].ends[-1] != now:
            return
        flight = self._flights.popleft()
        batch, ends = flight.batch, flight.ends
        drawn = (_TOKEN,) * len(ends)
        tokens = tuple([drawn if chunk.samples else () for chunk in batch.chunks])
        num_drafts = self._foretell(flight) - 1 if self._foretells else 0
        drafts = ((_TOKEN,) * num_drafts,) * len(tokens) if num_drafts >= _MIN_RUN else ()
        self._timelines.observe_run(self.scheduler.commit(batch, StepOutput(tokens, drafts), now), ends)
        self.num_steps += len(ends)
        self.num_computed_tokens += flight.num_tokens + (len(ends) - 1) * len(tokens)
        self.busy_s += now - flight.start_s
        self._loop(now)

    def _foretell(self, flight: Flight) -> int:
        """How many steps will be alike once this flight is committed.

        All sequences are about to generate, none ends before the last of these steps or lacks a block, and nobody joins.
        """
        chunks = flight.batch.chunks
        scheduler = self.scheduler
        load, limits = scheduler.load, scheduler.limits
        if self._inbox or len(chunks) != load.num_running:
            return 0
        num_steps = limits.max_batch_tokens
        num_staying = 0
        for row, start, length, _, _, samples, _, num_drafts in chunks:
            final = self._lengths[row]
            if not samples or final is None:
                return 0
            num_left = final - (start + length - num_drafts + len(flight.ends))
            if num_left > 0:
                num_staying += 1
                num_steps = min(num_steps, num_left)
        if not num_staying or (load.num_waiting and self._joins and num_staying < limits.max_sequences):
            return 0
        num_steps = min(num_steps, limits.max_batch_tokens // num_staying)
        if self._joins:
            # A run that is cut keeps its blocks a while longer than its steps would have. Nobody must miss them.
            num_blocks = (scheduler.pool.num_available - limits.num_blocks // 2) // num_staying
            num_steps = min(num_steps, (num_blocks - 1) * limits.block_size)
        return num_steps

    def _length(self, arrival: Arrival) -> int | None:
        """At which a sequence ends; None if it has siblings, which may join at any step."""
        if arrival.params.n > 1:
            return None
        wanted = arrival.params.max_tokens
        return arrival.prompt_length + wanted if wanted else self.scheduler.limits.max_positions

    def _set_alarm(self, now: float) -> None:
        """For a deadline that will pass, or a batch that will open."""
        wake_s = self.scheduler.wake_s
        if wake_s is not None and wake_s > now and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self._events.post(wake_s, self._ring)

    def _ring(self, now: float) -> None:
        """Of several alarms only the one set last counts."""
        if now == self._alarm_s:
            self._alarm_s = None
            self._look(now)


def _without_drafts(batch: Batch) -> Batch:
    """What the first step of a run computes: the same chunks, and no guess among them."""
    chunks = batch.chunks
    if not any(chunk.num_drafts for chunk in chunks):
        return batch
    return batch._replace(
        chunks=tuple([chunk._replace(length=chunk.length - chunk.num_drafts, num_drafts=0) for chunk in chunks])
    )
