"""A histogram of durations in bounded memory: buckets grow by 1 %, so a percentile is off by at most half of that."""

from bisect import bisect_left
from collections.abc import Sequence

_GROWTH = 1.01
_LEAST_S = 1e-6
_MOST_S = 1e5


def _make_bounds() -> list[float]:
    bounds = [_LEAST_S]
    while bounds[-1] < _MOST_S:
        bounds.append(bounds[-1] * _GROWTH)
    return [*bounds, float("inf")]


_BOUNDS = _make_bounds()
"""Upper ends of the buckets: all up to a microsecond shares the first, all above a day the last."""


class Histogram:
    """Counts of durations, in a few thousand buckets at most."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, duration_s: float, count: int = 1) -> None:
        number = bisect_left(_BOUNDS, duration_s)
        self._buckets[number] = self._buckets.get(number, 0) + count
        self.count += count
        self.sum_s += duration_s * count
        if duration_s > self.max_s:
            self.max_s = duration_s

    def add_gaps(self, times: Sequence[float], count: int) -> None:
        """Each gap between neighbouring times, that often. Neighbouring gaps are mostly alike, which makes this cheap."""
        if len(times) < 2:
            return
        buckets = self._buckets
        low = high = -1.0
        number = 0
        before = times[0]
        for time in times[1:]:
            gap = time - before
            before = time
            if not low < gap <= high:
                number = bisect_left(_BOUNDS, gap)
                low, high = _BOUNDS[number - 1] if number else -1.0, _BOUNDS[number]
            buckets[number] = buckets.get(number, 0) + count
            if gap > self.max_s:
                self.max_s = gap
        self.count += count * (len(times) - 1)
        self.sum_s += count * (times[-1] - times[0])

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
                middle = _BOUNDS[number - 1] * _GROWTH**0.5 if number else 0.0
                return min(middle, self.max_s)
        return self.max_s
