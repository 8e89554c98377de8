"""What every model of a step's duration answers. It knows no clock: it says how long, never when."""

from typing import Protocol

from penstock.core.batch import Batch


class Cost(Protocol):
    """Seconds a batch takes on one replica, from launch to tokens on the host."""

    def step_s(self, batch: Batch) -> float: ...

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        """Seconds of each of a run of steps: the batch, then the same with every chunk one position further, and so on."""


def moved(batch: Batch, num_positions: int) -> Batch:
    """The same batch with every chunk that many positions further."""
    return batch._replace(chunks=tuple(chunk._replace(start=chunk.start + num_positions) for chunk in batch.chunks))
