"""Whether the client itself kept up: how late its event loop ran and how busy its thread was.

A client that cannot read as fast as the server writes measures itself. Such a run is not reported as the server's.
"""

import asyncio
import time
from dataclasses import dataclass

from penstock.metrics.histogram import Histogram

EVERY_S = 0.01
BUSY_FRACTION = 0.85
LEAST_LAG_S = 0.01
LAG_FRACTION = 0.25
"""Of the median time to a first token: a larger lag could be what was measured."""


@dataclass(frozen=True, slots=True)
class Health:
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    """How much later than asked the event loop woke up."""
    cpu_fraction: float
    """Of one core, by the thread that sends and reads."""

    def fault(self, ttft_p50_s: float, send_late_p99_s: float) -> str:
        """Why these measurements are the client's own, or nothing."""
        allowed_s = max(LEAST_LAG_S, LAG_FRACTION * ttft_p50_s)
        if self.cpu_fraction > BUSY_FRACTION:
            return f"its thread was busy {100 * self.cpu_fraction:.0f} % of the time"
        if self.lag_p99_s > allowed_s:
            return f"its event loop ran {1e3 * self.lag_p99_s:.0f} ms late at p99, {1e3 * allowed_s:.0f} ms are allowed"
        if send_late_p99_s > allowed_s:
            return (
                f"requests were sent {1e3 * send_late_p99_s:.0f} ms late at p99, {1e3 * allowed_s:.0f} ms are allowed"
            )
        return ""


class HealthMonitor:
    """Watches the event loop it is started in, within a `with`."""

    def __init__(self) -> None:
        self._lags = Histogram()
        self._start = self._end = (0.0, 0.0)
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> "HealthMonitor":
        self._start = (time.perf_counter(), time.thread_time())
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        self._end = (time.perf_counter(), time.thread_time())
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(EVERY_S)
            now = time.perf_counter()
            # The time a loop was late counts as often as something could have been due in it.
            lag_s = max(now - before - EVERY_S, 0.0)
            self._lags.add(lag_s, 1 + int(lag_s / EVERY_S))
            before = now

    @property
    def health(self) -> Health:
        """Once it is over."""
        wall_s, cpu_s = self._end[0] - self._start[0], self._end[1] - self._start[1]
        return Health(
            lag_p50_s=self._lags.quantile(0.5),
            lag_p99_s=self._lags.quantile(0.99),
            lag_max_s=self._lags.max_s,
            cpu_fraction=cpu_s / wall_s if wall_s > 0.0 else 0.0,
        )
