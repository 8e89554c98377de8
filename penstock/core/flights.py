"""Steps on their way: whom each computes, and in which of their stays.

A result that comes for a stay that is over is nobody's. Knows who and in which order, not what is computed.
"""

from collections.abc import Iterable

from penstock.core.batch import Batch
from penstock.core.sequence import Sequence


class Flights:
    """One for each launched batch until it is committed. Steps are numbered in the order of launching, from 1."""

    __slots__ = ("_flights", "_last")

    def __init__(self) -> None:
        self._flights: dict[int, list[tuple[Sequence, int]]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._flights)

    def sequences(self, batch: Batch) -> tuple[Sequence, ...]:
        """Whose the chunks of a launched batch are."""
        return tuple(sequence for sequence, _ in self._flights[batch.step])

    def live(self, batch: Batch) -> tuple[int, ...]:
        """Which chunks of a launched batch are of sequences that have not left since."""
        flight = self._flights[batch.step]
        return tuple(index for index, (sequence, stay) in enumerate(flight) if sequence.stay == stay)

    def launch(self, sequences: Iterable[Sequence]) -> int:
        """Number a step that computes these."""
        self._last += 1
        self._flights[self._last] = [(sequence, sequence.stay) for sequence in sequences]
        return self._last

    def land(self, step: int) -> list[tuple[Sequence, int]]:
        """A step is over: the sequences it computed, each with the stay it was in."""
        return self._flights.pop(step)

    def split(self, batch: Batch) -> tuple[Batch, ...]:
        """A launched batch as batches of one chunk, to be committed each when it is done: sequences go ahead by different
        numbers of steps. Copies are due before the first."""
        copies = batch.copies
        parts = []
        for chunk, entry in zip(batch.chunks, self.land(batch.step), strict=True):
            self._last += 1
            self._flights[self._last] = [entry]
            parts.append(Batch(self._last, (chunk,), copies))
            copies = ()
        return tuple(parts)
