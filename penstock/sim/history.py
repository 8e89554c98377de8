"""How busy a replica was over time: exact averages, and a curve of bounded length."""

from typing import NamedTuple

from penstock.core.scheduler import Load

MAX_SAMPLES = 512


class Sample(NamedTuple):
    """The state that a step left behind."""

    time_s: float
    num_running: int
    num_waiting: int
    kv_usage_fraction: float


class History:
    """Samples no closer than a spacing that doubles whenever there are too many; averages weigh every moment alike."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.max_waiting = 0
        self.max_kv_usage_fraction = 0.0
        self._spacing_s = 0.0
        self._last = Sample(0.0, 0, 0, 0.0)
        self._running_seconds = 0.0
        self._waiting_seconds = 0.0
        self._kv_seconds = 0.0

    def add(self, load: Load, now: float) -> None:
        last = self._last
        elapsed = now - last.time_s
        self._running_seconds += elapsed * last.num_running
        self._waiting_seconds += elapsed * last.num_waiting
        self._kv_seconds += elapsed * last.kv_usage_fraction
        self._last = sample = Sample(now, load.num_running, load.num_waiting, load.kv_usage_fraction)
        self.max_waiting = max(self.max_waiting, load.num_waiting)
        self.max_kv_usage_fraction = max(self.max_kv_usage_fraction, load.kv_usage_fraction)
        if not self.samples or now - self.samples[-1].time_s >= self._spacing_s:
            self.samples.append(sample)
            if len(self.samples) > MAX_SAMPLES:
                self._thin()

    def mean_running(self, duration_s: float) -> float:
        return self._running_seconds / duration_s if duration_s > 0.0 else 0.0

    def mean_waiting(self, duration_s: float) -> float:
        return self._waiting_seconds / duration_s if duration_s > 0.0 else 0.0

    def mean_kv_usage_fraction(self, duration_s: float) -> float:
        return self._kv_seconds / duration_s if duration_s > 0.0 else 0.0

    def _thin(self) -> None:
        self.samples = self.samples[::2]
        self._spacing_s = 2.0 * (self.samples[-1].time_s - self.samples[0].time_s) / len(self.samples)
