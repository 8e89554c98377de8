"""How busy a replica was over time: exact averages, why requests waited, and a curve of bounded length."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.runtime.core.batch import make
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.scheduler import SchedulerLoad

MAX_SAMPLES = 512


class HistorySample(NamedTuple):
    """The state after a step."""

    time_s: float
    num_running: int
    num_waiting: int
    kv_usage_fraction: float


EMPTY = HistorySample(0.0, 0, 0, 0.0)


@dataclass(slots=True)
class History:
    """Samples no closer than a spacing that doubles whenever there are too many; averages weigh every moment equally."""

    limits: Limits | None = None
    joins: bool = True
    samples: list[HistorySample] = field(default_factory=list)
    max_waiting: int = 0
    max_kv_usage_fraction: float = 0.0
    waiting_for_rows_s: float = 0.0
    """Requests waited while the most sequences ran."""
    waiting_for_blocks_s: float = 0.0
    """Requests waited while rows were free and the step had budget left."""
    waiting_for_turn_s: float = 0.0
    """Requests waited for a step's budget, or for a batch to end."""
    _is_step_full: bool = False
    _spacing_s: float = 0.0
    _last: HistorySample = EMPTY
    _seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Of running and waiting requests, and of KV in use."""

    def add(
        self, load: SchedulerLoad, now: float, kv_usage_fraction: float | None = None, *, is_step_full: bool = False
    ) -> None:
        """The state from now on; `is_step_full` says that the step in flight has spent its budget."""
        usage = load.kv_usage_fraction if kv_usage_fraction is None else kv_usage_fraction
        last = self._last
        elapsed = now - last.time_s
        if elapsed > 0.0:
            seconds = self._seconds
            seconds[0] += elapsed * last.num_running
            seconds[1] += elapsed * last.num_waiting
            seconds[2] += elapsed * last.kv_usage_fraction
            if last.num_waiting:
                self._blame(last, elapsed)
        self._is_step_full = is_step_full
        self._last = sample = make(HistorySample, (now, load.num_running, load.num_waiting, usage))
        if load.num_waiting > self.max_waiting:
            self.max_waiting = load.num_waiting
        if usage > self.max_kv_usage_fraction:
            self.max_kv_usage_fraction = usage
        if not self.samples or now - self.samples[-1].time_s >= self._spacing_s:
            self.samples.append(sample)
            if len(self.samples) > MAX_SAMPLES:
                self.samples = self.samples[::2]
                self._spacing_s = 2.0 * (self.samples[-1].time_s - self.samples[0].time_s) / len(self.samples)

    def means(self, duration_s: float) -> tuple[float, float, float]:
        """Requests that ran and that waited, and the share of the KV cache in use, on average."""
        running, waiting, usage = (seconds / duration_s if duration_s > 0.0 else 0.0 for seconds in self._seconds)
        return running, waiting, usage

    def _blame(self, state: HistorySample, elapsed: float) -> None:
        is_whole = not self.joins
        if not is_whole and self.limits is not None and state.num_running >= self.limits.max_sequences:
            self.waiting_for_rows_s += elapsed
        elif is_whole or self._is_step_full:
            self.waiting_for_turn_s += elapsed
        else:
            self.waiting_for_blocks_s += elapsed
