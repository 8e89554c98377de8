"""Two lanes: interactive requests, in the order the operator chose, and batch requests after all of them.

A batch request is admitted only when no interactive one waits. `StepPlan` lets it compute only while no interactive one
runs, and preempts it first.
"""

from collections.abc import Iterator

from penstock.runtime.core.order import Order, Queue, Rank, by_arrival
from penstock.runtime.core.sequence import Sequence


class Lanes:
    """An order around another."""

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

    def __len__(self) -> int:
        return len(self._order) + len(self._batch)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._order
        yield from self._batch

    def _lane(self, sequence: Sequence) -> Order:
        return self._batch if sequence.request.is_batch else self._order
