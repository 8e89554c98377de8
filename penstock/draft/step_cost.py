"""Measured time of a step by the number of tokens it computes (its width), while serving.

Only steps without prompts count. Between measured widths the time is interpolated; beyond them it rises by an assumed slope
until a step of that width has been measured.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from statistics import median

NUM_KEPT = 7
"""Times kept of a width. Their median counts, so that one delayed step does not."""
FIRST_SLOPE = 0.03
"""Share of a step's time that one more token is assumed to take: so little that it is tried."""
NEAR = 0.8
MAX_AGE = 96
"""Steps after which a measurement is too old to decide by."""


class StepCost:
    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
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
        self._medians[num_tokens] = median(times)
        self._seen_at[num_tokens] = self._num_steps

    def is_fresh(self, num_tokens: int) -> bool:
        """A step of this width, or up to a fifth narrower, was measured lately."""
        place = bisect_right(self._widths, num_tokens)
        for width in reversed(self._widths[:place]):
            if width < NEAR * num_tokens:
                return False
            if self._num_steps - self._seen_at[width] < MAX_AGE:
                return True
        return False

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
            least = medians[widths[0]]
            return medians[low] + least * FIRST_SLOPE * (num_tokens - low)
        high = widths[place]
        share = (num_tokens - low) / (high - low)
        return medians[low] + share * (medians[high] - medians[low])
