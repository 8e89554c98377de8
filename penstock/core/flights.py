"""Steps on their way: whom each computes, and in which of their stays.

A result that comes for a stay that is over is nobody's. Knows who and in which order, not what is computed.
"""

from typing import NamedTuple

from penstock.core.batch import Batch
from penstock.core.sequence import Sequence


class Flight(NamedTuple):
    """The sequences that a step computes, and the stay that each was in."""

    sequences: list[Sequence]
    stays: list[int]


class Flights:
    """One for each launched batch until it is committed. Steps are numbered in the order of launching, from 1."""

    __slots__ = ("_flights", "_last")

    def __init__(self) -> None:
        self._flights: dict[int, Flight] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._flights)

    def sequences(self, batch: Batch) -> tuple[Sequence, ...]:
        """Whose the chunks of a launched batch are."""
        return tuple(self._flights[batch.step].sequences)

    def live(self, batch: Batch) -> tuple[int, ...]:
        """Which chunks of a launched batch are of sequences that have not left since."""
        sequences, stays = self._flights[batch.step]
        return tuple(index for index, sequence in enumerate(sequences) if sequence.stay == stays[index])

    def launch(self, sequences: list[Sequence]) -> int:
        """Number a step that computes these."""
        self._last += 1
        self._flights[self._last] = Flight(sequences, [sequence.stay for sequence in sequences])
        return self._last

    def land(self, step: int) -> Flight:
        """A step is over."""
        return self._flights.pop(step)

    def split(self, batch: Batch) -> tuple[Batch, ...]:
        """A launched batch as batches of one chunk, to be committed each when it is done: sequences go ahead by different
        numbers of steps. Copies are due before the first."""
        copies = batch.copies
        parts = []
        for chunk, sequence, stay in zip(batch.chunks, *self.land(batch.step), strict=True):
            self._last += 1
            self._flights[self._last] = Flight([sequence], [stay])
            parts.append(Batch(self._last, (chunk,), copies))
            copies = ()
        return tuple(parts)
