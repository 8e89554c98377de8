"""Virtual time: events in order of time, and of posting where times are equal."""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[float], None]
"""Called with the time that has come."""


class EventQueue:
    """Time stands still while an action runs and jumps to the next event after it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        """Events posted so far."""
        self._events: list[tuple[float, int, Action]] = []

    def post(self, at_s: float, action: Action) -> None:
        """Run the action at a time that is not past."""
        if not self.now <= at_s < float("inf"):
            raise ValueError(f"cannot post an event at {at_s}: it is {self.now} now")
        self.num_events += 1
        heappush(self._events, (at_s, self.num_events, action))

    def run_before(self, at_s: float) -> None:
        """Run all events before a time, which is then the present: what comes from outside at that time comes first."""
        events = self._events
        while events and events[0][0] < at_s:
            self.now, _, action = heappop(events)
            action(self.now)
        self.now = max(self.now, at_s)

    def run(self) -> None:
        """Run until no event is left."""
        events = self._events
        while events:
            self.now, _, action = heappop(events)
            action(self.now)
