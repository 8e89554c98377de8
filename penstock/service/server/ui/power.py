"""What the machine takes while pages watch: watts, where power can be read, and what an hour costs, where that was told."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.metrics.exposition import Counter, Metric

EVERY_S = 2.0
ENERGY = "_energy_joules"


class PowerMeter:
    """Reads counters of energy now and then; watts are their change over the last readings."""

    def __init__(self, metrics: Callable[[], Sequence[Metric]], dollars_per_hour: float | None) -> None:
        self._metrics = metrics
        self._dollars_per_hour = dollars_per_hour
        self._readings: deque[tuple[float, float]] = deque(maxlen=5)
        self._last_s = -EVERY_S

    def view(self, now: float) -> dict[str, Any]:
        if now - self._last_s >= EVERY_S:
            self._last_s = now
            counters = [one for one in self._metrics() if isinstance(one, Counter) and one.name.endswith(ENERGY)]
            if counters:
                self._readings.append((now, sum(one.total for one in counters)))
        return {"watts": self._watts, "dollars_per_hour": self._dollars_per_hour}

    @property
    def _watts(self) -> float | None:
        if len(self._readings) < 2:
            return None
        (first_s, first), (last_s, last) = self._readings[0], self._readings[-1]
        return max(last - first, 0.0) / (last_s - first_s)  # a counter that began again says nothing
