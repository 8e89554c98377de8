"""Which requests are past their deadline. Ended requests are recognised by asking for the pending ones; they are not
reported here."""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush

MAX_IDLE_DEADLINES = 64


class Deadlines:
    """`pending` are the ids of requests that have not ended, as they are at the moment of asking."""

    __slots__ = ("_heap", "_pending")

    def __init__(self, pending: Collection[int]) -> None:
        self._pending = pending
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def add(self, deadline_s: float, request_id: int) -> None:
        heappush(self._heap, (deadline_s, request_id))
        if len(self._heap) > 2 * len(self._pending) + MAX_IDLE_DEADLINES:
            self._heap = [entry for entry in self._heap if entry[1] in self._pending]
            heapify(self._heap)

    def missed(self, now: float) -> Iterator[int]:
        """Requests whose deadline has passed, first to last, each once. Those that have ended are forgotten on the way."""
        while self._heap:
            deadline_s, request_id = self._heap[0]
            if deadline_s > now and request_id in self._pending:
                return
            heappop(self._heap)
            if request_id in self._pending:
                yield request_id
