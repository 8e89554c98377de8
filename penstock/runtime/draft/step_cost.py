"""Measured time of a step by the number of tokens it computes (its width), while serving.

Only steps without prompts count. Between measured widths the time is interpolated. Beyond them it rises as it did up to there,
and `reach` says how far a guess at it may be trusted.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from math import inf
from statistics import median

NUM_KEPT = 7
"""Times kept of a width. Their median counts, so that one delayed step does not."""
FIRST_SLOPE = 0.03
"""Share of a step's time that one more token is assumed to take: so little that it is tried."""
NEAR = 0.8
MAX_AGE = 96
"""Steps after which a measurement is too old to decide by."""
MAX_GROWTH = 2
"""A step may be so many times as wide as the widest that was measured: a wrong guess at its time costs one such step."""


class StepCost:
    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._seen: dict[int, float] = {}
        """Median of what was measured of a width."""
        self._medians: dict[int, float] = {}
        """The same, or less where a wider step took less lately: a width that was slow once is tried again."""
        self._widths: list[int] = []
        """Widths that were measured, ascending."""
        self._seen_at: dict[int, int] = {}
        self._num_steps = 0

    def add(self, num_tokens: int, seconds: float) -> None:
        self._num_steps += 1
        times = self._times.get(num_tokens)
        if times is None:
            times = self._times[num_tokens] = deque(maxlen=NUM_KEPT)
            insort(self._widths, num_tokens)
        times.append(seconds)
        self._seen[num_tokens] = median(times)
        self._seen_at[num_tokens] = self._num_steps
        least = inf
        for width in reversed(self._widths):
            self._medians[width] = min(self._seen[width], least)
            if self._num_steps - self._seen_at[width] < MAX_AGE:
                least = self._medians[width]

    @property
    def reach(self) -> int:
        """The widest step worth trying."""
        return MAX_GROWTH * self._widths[-1] if self._widths else 1

    def is_fresh(self, num_tokens: int) -> bool:
        """A step of this width, or up to a fifth narrower, was measured lately."""
        return any(True for _ in self._fresh(num_tokens))

    def at_most(self, num_tokens: int) -> float:
        """The least time that steps about as wide speak for, scaled to this width: one slow measurement is not believed."""
        scaled = [self._medians[width] * num_tokens / width for width in self._fresh(num_tokens)]
        return min(scaled, default=self(num_tokens))

    def _fresh(self, num_tokens: int) -> Iterator[int]:
        """Widths up to this one, and not a fifth narrower, that were measured lately."""
        for width in reversed(self._widths[: bisect_right(self._widths, num_tokens)]):
            if width < NEAR * num_tokens:
                return
            if self._num_steps - self._seen_at[width] < MAX_AGE:
                yield width

    def __call__(self, num_tokens: int) -> float:
        known = self._medians.get(num_tokens)
        if known is not None:
            return known
        widths, medians = self._widths, self._medians
        if not widths:
            return 1.0 + FIRST_SLOPE * num_tokens
        place = bisect_left(widths, num_tokens)
        if place == 0:
            return medians[widths[0]]
        low = widths[place - 1]
        if place == len(widths):
            first = widths[0]
            rise = (medians[low] - medians[first]) / max(low - first, 1)
            return medians[low] + max(rise, medians[first] * FIRST_SLOPE) * (num_tokens - low)
        high = widths[place]
        share = (num_tokens - low) / (high - low)
        return medians[low] + share * (medians[high] - medians[low])
