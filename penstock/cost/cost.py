"""What every model of a step's duration answers. It knows no clock: it says how long, never when."""

from typing import Protocol

from penstock.core.batch import Batch


class Cost(Protocol):
    """Seconds a batch takes on one replica, from launch to tokens on the host."""

    def step_s(self, batch: Batch) -> float: ...
