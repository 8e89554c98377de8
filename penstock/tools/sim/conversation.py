"""Conversations in virtual time: a next question arrives after the answer before it and the user's think time.

Receives deltas before the timelines do. It knows neither replicas nor schedulers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from penstock.metrics.timeline import Timelines, outcome_of
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.tools.sim.clock import EventQueue
from penstock.tools.sim.replica.replica import TOKEN
from penstock.tools.workload.workload import FollowUp

FIRST_ID = 10**12
"""Of later turns: no workload numbers its requests so far."""


@dataclass(slots=True)
class Conversations:
    """A ledger that calls `ask` with each later turn at its time. A turn that is refused or fails ends its conversation."""

    later: Mapping[int, Sequence[FollowUp]]
    timelines: Timelines
    events: EventQueue
    ask: Callable[[Request, float], None]
    _ids: Iterator[int] = field(default_factory=lambda: count(FIRST_ID))
    _open: dict[int, tuple[Request, Sequence[FollowUp]]] = field(default_factory=dict)
    _num_thinking: int = 0

    def has_more(self) -> bool:
        """Whether later turns are still to come."""
        return bool(self._num_thinking or self._open)

    def begin(self, request: Request) -> None:
        if request.request_id in self.later:
            self._open[request.request_id] = (request, self.later[request.request_id])

    def refuse(self, request_id: int, now: float) -> None:
        self._open.pop(request_id, None)
        self.timelines.refuse(request_id, now)

    def observe(self, deltas: Sequence[Delta], now: float) -> None:
        self.timelines.observe(deltas, now)
        for delta in deltas:
            if delta.finish is not None:
                self._end(delta, now)

    def observe_run(self, delta: Delta, times: Sequence[float]) -> None:
        self.timelines.observe_run(delta, times)
        if delta.finish is not None:
            self._end(delta, times[-1])

    def _end(self, delta: Delta, now: float) -> None:
        found = self._open.pop(delta.request_id, None)
        if found is None or delta.finish is None or not outcome_of(delta.finish).is_success:
            return
        request, (turn, *rest) = found
        answer = (TOKEN,) * (request.params.max_tokens or 0)

        def go_on(at_s: float) -> None:
            following = turn.after(request, answer, next(self._ids), at_s)
            self._num_thinking -= 1
            if rest:
                self._open[following.request_id] = (following, rest)
            self.ask(following, at_s)

        self._num_thinking += 1
        self.events.post(now + turn.think_s, go_on)
