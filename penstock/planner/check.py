"""What was predicted beside what was measured on the same load, and whether they are near enough."""

import math
from dataclasses import dataclass

from penstock.errors import ConfigError

TIMES = ("ttft", "tpot", "e2e")
SHARES = ("p50", "p95")


@dataclass(frozen=True, slots=True)
class Row:
    """`is_judged` says that the tolerance applies."""

    name: str
    predicted: float
    measured: float
    is_judged: bool

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where something was predicted and nothing measured."""
        if not self.measured:
            return None if self.predicted else 0.0
        return self.predicted / self.measured - 1.0

    @property
    def distance(self) -> float:
        return math.inf if self.error is None else abs(self.error)


@dataclass(frozen=True, slots=True)
class Check:
    rows: tuple[Row, ...]
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
    def worst(self) -> Row:
        return max((row for row in self.rows if row.is_judged), key=lambda row: row.distance)


def check(predicted: dict[str, float], measured: dict[str, float], tolerance: float) -> Check:
    """Times and rates are judged; whatever else was predicted is shown beside."""
    rows = []
    for name, value in predicted.items():
        if name in measured:
            is_judged = name == "output_tokens_per_s" or name.rpartition("_")[0] in TIMES
            rows.append(Row(name, value, measured[name], is_judged))
    if not any(row.is_judged for row in rows):
        raise ConfigError("there is nothing to compare: no request was answered")
    return Check(tuple(rows), tolerance)
