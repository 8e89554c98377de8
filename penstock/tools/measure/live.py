"""A workload through a live engine in this process: each request is handed over at its time, as a server's clients would.

The same timelines come out as of the simulator: a token counts when the turn of the loop that brought it is over.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from typing import NamedTuple

from penstock.metrics.timeline import Timelines
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.engine.engine import Engine
from penstock.tools.workload.workload import Workload

MAX_SLEEP_S = 0.5
FIRST_TURN_ID = 10**12
"""Of later turns: no workload numbers its requests so far."""


class Coming:
    """Requests in order of arrival: the workload's, and later turns, each so long after the answer before it."""

    def __init__(self, workload: Workload) -> None:
        self._coming = [(one.arrival_s, one.request_id, one) for one in workload.requests]
        heapify(self._coming)
        self._later = dict(workload.later)
        self._open: dict[int, tuple[Request, list[int]]] = {}
        self._ids = count(FIRST_TURN_ID)

    @property
    def next_s(self) -> float | None:
        """When the next one comes that is known of; None while none is."""
        return self._coming[0][0] if self._coming else None

    def take(self, now: float) -> Iterator[Request]:
        """Requests that have come by now."""
        while self._coming and self._coming[0][0] <= now:
            request = heappop(self._coming)[2]
            if request.request_id in self._later:
                self._open[request.request_id] = (request, [])
            yield request

    def observe(self, deltas: Sequence[Delta], now: float) -> None:
        for delta in deltas:
            if delta.request_id not in self._open:
                continue
            request, answer = self._open[delta.request_id]
            answer += delta.token_ids
            if delta.finish is not None:
                del self._open[delta.request_id]
                turn, *rest = self._later.pop(delta.request_id)
                following = turn.after(request, answer, next(self._ids), now + turn.think_s)
                if rest:
                    self._later[following.request_id] = rest
                heappush(self._coming, (following.arrival_s, following.request_id, following))


class Served(NamedTuple):
    timelines: Timelines
    duration_s: float
    taken_s: dict[int, float]
    """By request id: when the turn of the loop began that took it in, counted from the first turn."""
    first_turn_s: float
    pauses: list[tuple[int, float]]
    """Steps that were over when the workload's clock stood still, and for how long."""


def serve_live(engine: Engine, workload: Workload, between: Callable[[], None] | None = None) -> Served:
    """Serve the workload to its end.

    When there is nothing to do, `between` may do something else: the workload's clock stands still meanwhile, and what was
    left of the rest is rested afterwards.
    """
    timelines = Timelines()
    coming = Coming(workload)
    taken_s: dict[int, float] = {}
    handed_over: list[int] = []
    pauses: list[tuple[int, float]] = []
    first_turn_s: float | None = None
    first_step = engine.num_steps
    begin_s = time.monotonic()
    while coming.next_s is not None or engine.has_work:
        now = time.monotonic() - begin_s
        for request in coming.take(now):
            timelines.arrive(request.request_id, request.arrival_s, len(request.prompt), request.params.n)
            engine.submit(request)
            handed_over.append(request.request_id)
        if engine.has_work:
            num_steps = engine.num_steps
            deltas = engine.step()
            now = time.monotonic() - begin_s
            timelines.observe(deltas, now)
            coming.observe(deltas, now)
            turn_s = engine.turn_s - begin_s
            first_turn_s = turn_s if first_turn_s is None else first_turn_s
            taken_s.update(dict.fromkeys(handed_over, turn_s - first_turn_s))
            handed_over.clear()
            if deltas or engine.num_steps != num_steps:
                continue
        elif between is not None:
            rest_s = time.monotonic()
            between()
            pauses.append((engine.num_steps - first_step, time.monotonic() - rest_s))
            begin_s += pauses[-1][1]
        _sleep(engine, None if coming.next_s is None else coming.next_s + begin_s)
    return Served(timelines, time.monotonic() - begin_s, taken_s, first_turn_s or 0.0, pauses)


def _sleep(engine: Engine, arrival_s: float | None) -> None:
    """Until the next request comes, or the scheduler has something to do by itself."""
    times = [time_s for time_s in (arrival_s, engine.scheduler.wake_s) if time_s is not None]
    left_s = min(times, default=0.0) - time.monotonic()
    engine.wait(min(max(left_s, 0.0), MAX_SLEEP_S))


class Disturbance:
    """How much of the machine others used since this was made. Nothing is reported where the system has no such account."""

    def __init__(self) -> None:
        self._begin = _ticks()

    @property
    def fraction(self) -> float | None:
        begin, end = self._begin, _ticks()
        if begin is None or end is None or end[0] <= begin[0]:
            return None
        busy, own = end[1] - begin[1], end[2] - begin[2]
        return min(max(busy - own, 0.0) / (end[0] - begin[0]), 1.0)  # seconds are rounded


def _ticks() -> tuple[float, float, float] | None:
    """Seconds of all processors together: in all, spent on anybody's work, spent on ours."""
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    per_s = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    own = os.times()
    return sum(fields) / per_s, (sum(fields) - idle) / per_s, own.user + own.system
