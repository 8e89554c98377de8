"""Steps in flight: which sequences each computes, and the last epoch that had begun when it was launched.

A result for an epoch that is over is dropped. Knows sequences and their order, not what is computed.
"""

from typing import NamedTuple

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.sequence import Sequence


class LaunchedSequences(NamedTuple):
    sequences: list[Sequence]
    """The sequences that the step computes."""
    last_epoch: int
    """The last that had begun when it was launched."""


class Flights:
    """One for each launched batch until it is committed. Steps are numbered in the order of launching, from 1."""

    __slots__ = ("_flights", "_last")

    def __init__(self) -> None:
        self._flights: dict[int, LaunchedSequences] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._flights)

    def sequences(self, batch: Batch) -> tuple[Sequence, ...]:
        """Whose the chunks of a launched batch are."""
        return tuple(self._flights[batch.step].sequences)

    def live(self, batch: Batch) -> tuple[int, ...]:
        """Which chunks of a launched batch belong to sequences that are still in the same epoch."""
        sequences, last_epoch = self._flights[batch.step]
        return tuple(index for index, sequence in enumerate(sequences) if sequence.is_inside_since(last_epoch))

    def launch(self, sequences: list[Sequence], last_epoch: int) -> int:
        """Number a step that computes these."""
        self._last += 1
        self._flights[self._last] = LaunchedSequences(sequences, last_epoch)
        return self._last

    def land(self, step: int) -> LaunchedSequences:
        """A step is over."""
        return self._flights.pop(step)
