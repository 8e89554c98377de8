"""A baseline: batches as rectangles, where every prompt of a step is as long as the longest and every sequence reads as far."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.runtime.core.batch import Batch, Chunk
from penstock.tools.cost.cost import Cost


@dataclass
class PaddedCost:
    """Seconds of padded batches by another cost. Counts what was asked for and what was done: tokens computed, KV read."""

    cost: Cost
    num_asked: int = 0
    num_computed: int = 0
    num_needed: int = 0
    num_read: int = 0

    @property
    def waste_fraction(self) -> float:
        """Share of the computed tokens that nobody asked for."""
        return 1.0 - self.num_asked / self.num_computed if self.num_computed else 0.0

    @property
    def read_waste_fraction(self) -> float:
        """Share of the KV read that belongs to no sequence: each reads as far as the longest."""
        return 1.0 - self.num_needed / self.num_read if self.num_read else 0.0

    def step_s(self, batch: Batch) -> float:
        return self.cost.step_s(self._counted(batch, 1))

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        return self.cost.run_s(self._counted(batch, num_steps), num_steps)

    def _counted(self, batch: Batch, num_steps: int) -> Batch:
        rectangle = padded(batch)
        self.num_asked += num_steps * sum(chunk.length for chunk in batch.chunks)
        self.num_computed += num_steps * sum(chunk.length for chunk in rectangle.chunks)
        self.num_needed += num_steps * sum(chunk.start + chunk.length for chunk in batch.chunks)
        self.num_read += num_steps * sum(chunk.start + chunk.length for chunk in rectangle.chunks)
        return rectangle


def padded(batch: Batch) -> Batch:
    """Prompts among themselves, and sequences that generate among themselves."""
    prompts = [chunk for chunk in batch.chunks if chunk.length > 1]
    others = [chunk for chunk in batch.chunks if chunk.length == 1]
    return batch._replace(chunks=(*_even(prompts), *_even(others)))


def _even(chunks: Sequence[Chunk]) -> list[Chunk]:
    length, start = (max((getattr(chunk, name) for chunk in chunks), default=0) for name in ("length", "start"))
    return [chunk._replace(start=start, length=length) for chunk in chunks]
