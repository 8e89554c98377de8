"""What was predicted beside what was measured on the same load, and whether they are near enough."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import ConfigError

T90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Two-sided quantiles of Student's distribution at 90 %, for 1, 2, ... degrees of freedom."""
TIMES = ("ttft", "tpot", "e2e")
SHARES = ("p50", "p95")


@dataclass(frozen=True, slots=True)
class CheckRow:
    """`is_judged` says that the tolerance applies."""

    name: str
    moments: tuple[float, ...]
    """What is predicted, for each moment at which the machine may be asked."""
    measured: float
    is_judged: bool
    model_error: float = 0.0
    """Of the step times, the usual error: a share by which every prediction may be off."""

    @property
    def predicted(self) -> float:
        return sum(self.moments) / len(self.moments)

    @property
    def range(self) -> tuple[float, float]:
        """Of what is predicted: a measurement in it, or near it, proves the prediction."""
        return min(self.moments), max(self.moments)

    @property
    def interval(self) -> tuple[float, float]:
        """Between which a measurement lies nine times in ten, at a moment that is none of those predicted: Student's interval
        for one more of them, widened by the error of the step times."""
        count, mean = len(self.moments), self.predicted
        half = 0.0
        if count > 1:
            half = T90[min(count - 1, len(T90)) - 1] * statistics.stdev(self.moments) * math.sqrt(1.0 + 1.0 / count)
        low, high = min(mean - half, *self.moments), max(mean + half, *self.moments)
        return max(low * (1.0 - self.model_error), 0.0), high * (1.0 + self.model_error)

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where something was predicted and nothing measured."""
        if not self.measured:
            return None if self.predicted else 0.0
        return self.predicted / self.measured - 1.0

    @property
    def distance(self) -> float:
        """From what is predicted for one moment or another; as a share of what was measured."""
        if self.error is None:
            return math.inf
        low, high = self.range
        return abs(min(max(self.measured, low), high) / self.measured - 1.0) if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    rows: tuple[CheckRow, ...]
    tolerance: float

    def __post_init__(self) -> None:
        if not 0.0 < self.tolerance < 1.0:
            raise ConfigError(
                f"the tolerance is {self.tolerance}; choose a share between 0 and 1, such as 0.1 for 10 %"
            )

    @property
    def is_within(self) -> bool:
        return all(row.distance <= self.tolerance for row in self.rows if row.is_judged)

    @property
    def worst(self) -> CheckRow:
        return max((row for row in self.rows if row.is_judged), key=lambda row: row.distance)


def check(
    moments: Sequence[Mapping[str, float]], measured: Mapping[str, float], tolerance: float, model_error: float = 0.0
) -> PredictionCheck:
    """Times and rates are judged; whatever else was predicted is shown beside."""
    rows = []
    for name in moments[0]:
        if name in measured:
            is_judged = name == "output_tokens_per_s" or name.rpartition("_")[0] in TIMES
            each = tuple(moment[name] for moment in moments)
            rows.append(CheckRow(name, each, measured[name], is_judged, model_error))
    if not any(row.is_judged for row in rows):
        raise ConfigError("there is nothing to compare: no request was answered")
    return PredictionCheck(tuple(rows), tolerance)
