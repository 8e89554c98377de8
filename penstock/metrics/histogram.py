"""A histogram of durations in bounded memory: buckets grow by 1 %, so a percentile is off by at most half of that."""

import math

_GROWTH = 1.01
_LOG_GROWTH = math.log(_GROWTH)
_LEAST_S = 1e-6
_NUM_BUCKETS = math.ceil(math.log(1e5 / _LEAST_S) / _LOG_GROWTH)
"""Up to about a day; all above shares the last bucket, all below a microsecond the first."""


class Histogram:
    """Counts of durations, in a few thousand buckets at most."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, duration_s: float, count: int = 1) -> None:
        number = 0
        if duration_s > _LEAST_S:
            number = min(int(math.log(duration_s / _LEAST_S) / _LOG_GROWTH) + 1, _NUM_BUCKETS)
        self._buckets[number] = self._buckets.get(number, 0) + count
        self.count += count
        self.sum_s += duration_s * count
        self.max_s = max(self.max_s, duration_s)

    def merge(self, other: "Histogram") -> None:
        for number, count in other._buckets.items():
            self._buckets[number] = self._buckets.get(number, 0) + count
        self.count += other.count
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count if self.count else 0.0

    def quantile(self, fraction: float) -> float:
        """The duration that this share of all does not exceed; 0 when empty."""
        wanted = fraction * self.count
        seen = 0
        for number in sorted(self._buckets):
            seen += self._buckets[number]
            if seen >= wanted:
                return min(_middle(number), self.max_s)
        return self.max_s


def _middle(number: int) -> float:
    """Geometric middle of a bucket."""
    return 0.0 if number == 0 else _LEAST_S * math.exp((number - 0.5) * _LOG_GROWTH)
