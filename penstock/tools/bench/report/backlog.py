"""Whether more comes than the server can serve: the number of requests under way, and whether it keeps growing.

In a stable queue it swings around a mean; beyond the limit it grows by (arrivals - completions) a second for as long as one
looks, and every latency measured says more about the length of the run than about the server.
"""

import math
import statistics
from dataclasses import dataclass, field

LEAST_SAMPLES = 10
LEAST_ARRIVALS = 30
GROWING_FRACTION = 0.1
"""Share of arrivals that must pile up to be called growth."""
SIGMAS = 3.0
"""Growth must exceed this many standard deviations of what chance brings in."""
SETTLING = 3.0
"""Times of a request on a fresh server before a queue can be judged: it fills up at first whatever comes."""


@dataclass(slots=True)
class Backlog:
    """Samples of requests under way while arrivals last. `variation` is that of the gaps between arrivals."""

    variation: float = 1.0
    samples: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, requests under way), in order."""
    num_arrivals: int = 0
    num_open: int = 0
    """Under way at the last look, be it after the last arrival."""
    early_s: float | None = None
    """How long the first requests took."""

    def add(self, now_s: float, num_open: int) -> None:
        self.samples.append((now_s, num_open))

    @property
    def is_growing(self) -> bool:
        """Looks at the later half of the samples, so that a slow start does not count."""
        if len(self.samples) < LEAST_SAMPLES or self.num_arrivals < LEAST_ARRIVALS or self.early_s is None:
            return False
        end_s = self.samples[-1][0]
        if end_s < SETTLING * self.early_s:
            return False
        later = [(time_s, count) for time_s, count in self.samples if time_s >= end_s / 2]
        span_s = later[-1][0] - later[0][0]
        arrived = self.num_arrivals * span_s / end_s
        growth = statistics.linear_regression(*zip(*later, strict=True)).slope * span_s if span_s > 0.0 else 0.0
        chance = SIGMAS * max(self.variation, 0.3) * math.sqrt(arrived)
        return growth > GROWING_FRACTION * arrived and growth > chance

    def is_left_over(self, now_s: float) -> bool:
        """A run too short to see growth: long after the last arrival much of it still waits."""
        if self.early_s is None or not self.samples or self.num_arrivals < LEAST_ARRIVALS:
            return False
        last_s = self.samples[-1][0]
        since_s = now_s - last_s
        return self.num_open > GROWING_FRACTION * self.num_arrivals and since_s > max(last_s, SETTLING * self.early_s)
