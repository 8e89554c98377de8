"""How many tokens a step may have, corrected by how long full steps really take.

At start the size follows from a short timing of the device, which a busy moment spoils. Owns the correction while serving;
knows neither devices nor models.
"""

from dataclasses import dataclass, field

from penstock.runtime.core.batch import Batch

NUM_AGREEING = 3
"""Full steps in a row that must say the same before the size changes."""


@dataclass(slots=True, kw_only=True)
class StepSize:
    """Doubles where full steps take less than half of the time they may take, halves where they take more than double."""

    step_s: float
    """How long a full step may take."""
    least: int
    most: int
    is_bounded_by_start: bool = False
    """No larger than the first step's size: more room was not set aside."""
    _factor: float = field(default=1.0, init=False)
    _num_agreeing: int = field(default=0, init=False)

    def after(self, batch: Batch, seconds: float, size: int) -> int:
        """The size from now on, given that of the step just computed."""
        if self.is_bounded_by_start:
            self.most, self.is_bounded_by_start = min(self.most, size), False
        if batch.chunks[-1].length == 1 or batch.num_tokens < size:
            return size
        factor = 2.0 if seconds < self.step_s / 2 else 0.5 if seconds > 2 * self.step_s else 1.0
        self._num_agreeing = self._num_agreeing + 1 if factor == self._factor else 1
        self._factor = factor
        if self._num_agreeing < NUM_AGREEING:
            return size
        self._num_agreeing = 0
        return min(max(int(size * factor), min(self.least, size)), max(self.most, self.least))
