"""Who is admitted next, and who may preempt whom.

An order keeps the waiting sequences. `rank` orders all sequences (smaller matters more): a sequence that needs blocks may
only preempt those that rank after it, so the first of all is never preempted and every sequence gets its turn.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from penstock.runtime.core.sequence import Sequence

Rank = tuple[Any, ...]


class Order(Protocol):
    counts_service: bool
    """Service is counted by tenant: charging makes a difference, and tenants share rows and blocks."""

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait."""

    def peek(self) -> Sequence | None:
        """The sequence that would be admitted next."""

    def pop(self) -> Sequence:
        """Admit the sequence that `peek` names."""

    def remove(self, sequence: Sequence) -> None:
        """A waiting sequence was cancelled."""

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count service given to a sequence."""

    def rank(self, sequence: Sequence) -> Rank:
        """Place in the order; unique."""

    def tier(self, sequence: Sequence) -> float:
        """Importance class, larger matters less: preempted before others whatever the cost."""

    @property
    def firsts(self) -> Iterable[Sequence]:
        """Where service is counted: the next of each tenant that waits."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """All waiting sequences, in no order."""


class Queue:
    """A heap by rank. Removal leaves a gap that is skipped later, or closed when gaps prevail: O(log n) on average."""

    MAX_GAPS = 64
    counts_service = False
    firsts: Iterable[Sequence] = ()

    def __init__(self, rank: Callable[[Sequence], Rank], tier: Callable[[Sequence], float] = lambda _: 0.0) -> None:
        self.rank = rank
        self.tier = tier
        self._heap: list[tuple[Rank, Sequence]] = []
        self._waiting: dict[Sequence, None] = {}

    def push(self, sequence: Sequence) -> None:
        self._waiting[sequence] = None
        heappush(self._heap, (self.rank(sequence), sequence))

    def peek(self) -> Sequence | None:
        heap = self._heap
        while heap and heap[0][1] not in self._waiting:
            heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> Sequence:
        sequence = self.peek()
        if sequence is None:
            raise IndexError("nobody waits")
        heappop(self._heap)
        del self._waiting[sequence]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence]
        if len(self._heap) > 2 * len(self._waiting) + self.MAX_GAPS:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapify(self._heap)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        pass

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)


def by_arrival(sequence: Sequence) -> Rank:
    return (sequence.number, sequence.choice)


def priority_tier(sequence: Sequence) -> float:
    return -sequence.request.priority


def by_priority(sequence: Sequence) -> Rank:
    return (priority_tier(sequence), sequence.number, sequence.choice)


def by_deadline(sequence: Sequence) -> Rank:
    deadline = sequence.request.deadline_s
    return (float("inf") if deadline is None else deadline, sequence.number, sequence.choice)


class FairQueue:
    """The tenant that was served least goes first; inside a tenant, first come first served.

    Service is counted in tokens. A tenant that was absent resumes at the present level: absence earns no credit. Levels
    only rise, so a stale heap entry is always too small and is corrected when it surfaces. A tenant has at most one entry.
    """

    MAX_IDLE_TENANTS = 4096
    counts_service = True

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._levels: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._listed: set[str] = set()
        """Tenants with an entry in the heap; some of them no longer wait."""
        self._present = 0
        """Level of the tenant admitted last."""
        self._num_waiting = 0

    rank = staticmethod(by_arrival)

    def tier(self, sequence: Sequence) -> float:
        return self.level(sequence.request.tenant)

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = Queue(by_arrival)
            self._levels[tenant] = max(self._levels.get(tenant, 0), self._present)
            if tenant not in self._listed:
                self._listed.add(tenant)
                heappush(self._heap, (self._levels[tenant], sequence.number, tenant))
        queue.push(sequence)
        self._num_waiting += 1

    def peek(self) -> Sequence | None:
        tenant = self._next_tenant()
        return None if tenant is None else self._queues[tenant].peek()

    def pop(self) -> Sequence:
        tenant = self._next_tenant()
        if tenant is None:
            raise IndexError("nobody waits")
        self._present = max(self._present, self._levels[tenant])
        sequence = self._queues[tenant].pop()
        self._took(tenant)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self._queues[sequence.request.tenant].remove(sequence)
        self._took(sequence.request.tenant)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        tenant = sequence.request.tenant
        self._levels[tenant] = self._levels.get(tenant, self._present) + num_tokens

    def level(self, tenant: str) -> int:
        """Tokens this tenant has been served, on the scale that admission compares."""
        return self._levels.get(tenant, self._present)

    @property
    def firsts(self) -> Iterable[Sequence]:
        return [first for queue in self._queues.values() if (first := queue.peek()) is not None]

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def _next_tenant(self) -> str | None:
        heap = self._heap
        while heap:
            level, number, tenant = heap[0]
            if tenant not in self._queues:
                heappop(heap)
                self._listed.discard(tenant)
            elif level < self._levels[tenant]:
                heappop(heap)
                heappush(heap, (self._levels[tenant], number, tenant))
            else:
                return tenant
        return None

    def _took(self, tenant: str) -> None:
        self._num_waiting -= 1
        if not self._queues[tenant]:
            del self._queues[tenant]
        if len(self._levels) > self.MAX_IDLE_TENANTS + len(self._queues):
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Of the tenants that do not wait keep the half that was served most: forgetting the others gives least away."""
        idle = sorted((name for name in self._levels if name not in self._queues), key=self.level)
        for name in idle[: len(idle) - self.MAX_IDLE_TENANTS // 2]:
            del self._levels[name]


class Lanes:
    """An order around another: interactive requests in that order, batch requests after all of them.

    A batch request is admitted only when no interactive one waits. `StepPlan` lets it compute only while no interactive one
    runs, and preempts it first.
    """

    def __init__(self, order: Order) -> None:
        self.counts_service = order.counts_service
        self._order = order
        self._batch = Queue(by_arrival)

    def push(self, sequence: Sequence) -> None:
        self._lane(sequence).push(sequence)

    def peek(self) -> Sequence | None:
        first = self._order.peek()
        return self._batch.peek() if first is None else first

    def pop(self) -> Sequence:
        return self._order.pop() if len(self._order) else self._batch.pop()

    def remove(self, sequence: Sequence) -> None:
        self._lane(sequence).remove(sequence)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        self._lane(sequence).charge(sequence, num_tokens)

    def rank(self, sequence: Sequence) -> Rank:
        return (sequence.request.is_batch, *self._lane(sequence).rank(sequence))

    def tier(self, sequence: Sequence) -> float:
        return float("inf") if sequence.request.is_batch else self._order.tier(sequence)

    @property
    def firsts(self) -> Iterable[Sequence]:
        return self._order.firsts

    def __len__(self) -> int:
        return len(self._order) + len(self._batch)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._order
        yield from self._batch

    def _lane(self, sequence: Sequence) -> Order:
        return self._batch if sequence.request.is_batch else self._order


ORDERS: dict[str, Callable[[], Order]] = {
    "first-come": lambda: Queue(by_arrival),
    "priority": lambda: Queue(by_priority, priority_tier),
    "deadline": lambda: Queue(by_deadline),
    "fair": FairQueue,
}
