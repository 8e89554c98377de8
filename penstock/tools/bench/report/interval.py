"""How sure a mean of a few runs is, and whether two of them differ: Student's and Welch's intervals at 95 %."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided quantiles of Student's distribution for 1, 2, ... degrees of freedom."""
_T95_MORE = ((20, 2.131), (30, 2.086), (60, 2.042), (120, 2.000), (math.inf, 1.980))
"""Beyond them, up to so many degrees: that of the next smaller tabled number, which errs to the wide side."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and how far the truth may lie from it; None from one value alone."""

    mean: float
    half_width: float | None
    count: int

    @property
    def is_clear(self) -> bool:
        """Zero lies outside."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def interval(values: Sequence[float]) -> Interval:
    count = len(values)
    mean = math.fsum(values) / count if count else 0.0
    if count < 2:
        return Interval(mean, None, count)
    return Interval(mean, student_95(count - 1) * math.sqrt(statistics.variance(values, mean) / count), count)


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Of the means, second less first. The two need not vary alike."""
    means = [math.fsum(values) / len(values) if values else 0.0 for values in (first, second)]
    count = min(len(first), len(second))
    if count < 2:
        return Interval(means[1] - means[0], None, count)
    squares = [
        statistics.variance(values, mean) / len(values) for values, mean in zip((first, second), means, strict=True)
    ]
    total = math.fsum(squares)
    if total <= 0.0:
        return Interval(means[1] - means[0], 0.0, count)
    parts = (square**2 / (len(values) - 1) for square, values in zip(squares, (first, second), strict=True))
    return Interval(means[1] - means[0], student_95(total**2 / math.fsum(parts)) * math.sqrt(total), count)


def student_95(degrees: float) -> float:
    """The two-sided quantile of Student's distribution."""
    if degrees < 1.0:
        return _T95[0]
    if degrees < len(_T95) + 1:
        return _T95[int(degrees) - 1]
    return next(quantile for most, quantile in _T95_MORE if degrees <= most)
