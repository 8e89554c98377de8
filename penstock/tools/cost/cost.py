"""What every model of a step's duration provides. It knows no clock: it says how long, never when."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.runtime.core.batch import Batch, Chunk
from penstock.tools.cost.measured.slowdown import Slowdown
from penstock.tools.cost.measured.warmth import Cooling


class Cost(Protocol):
    """Seconds a batch takes on one replica, from launch to tokens on the host."""

    def step_s(self, batch: Batch) -> float: ...

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        """Seconds of each of a run of steps: the batch, then the same with every chunk one position further, and so on."""


@runtime_checkable
class Summing(Protocol):
    """A cost that need not see every sequence that generates: their number and the sum of their lengths decide."""

    @property
    def is_summing(self) -> bool: ...

    def sum_s(self, num_sequences: int, num_positions: int, prompts: Sequence[Chunk]) -> float:
        """Seconds of a step of that many sequences generating, positions up to and with their new ones summed, and prompts."""

    def sums_s(self, num_sequences: int, num_positions: int, num_steps: int) -> list[float]:
        """Seconds of each of a run of steps of sequences that generate."""


@runtime_checkable
class TimeVaryingCost(Protocol):
    """A cost of a device that takes longer while its caches are cold, and at some moments."""

    @property
    def cooling(self) -> Cooling | None:
        """How they lose what steps read; None if that costs nothing."""

    @property
    def slowdowns(self) -> Sequence[Slowdown]:
        """How much longer it takes from moment to moment; none if it is always the same."""

    def cold_s(self, batch: Batch, num_steps: int) -> list[float]:
        """Seconds that each of a run of steps takes beyond `run_s` if they have lost everything."""


def plain_chunk(row: int, start: int, length: int, *, samples: bool = True) -> Chunk:
    """A chunk as far as its cost goes: so many tokens behind so many."""
    return Chunk(row, start, length, (), (), samples, None)


def decode_chunks(num_sequences: int, num_held: int) -> list[Chunk]:
    """Sequences that each generate a token behind so many."""
    return [plain_chunk(row, num_held, 1) for row in range(num_sequences)]


def moved(batch: Batch, num_positions: int) -> Batch:
    """The same batch with every chunk that many positions further."""
    return batch._replace(chunks=tuple(chunk._replace(start=chunk.start + num_positions) for chunk in batch.chunks))
