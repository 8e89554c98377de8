"""The step log: one line for each step of a live engine, what it was and how long it took. No token and no text is in it.

    {"penstock_steps": 2, "model": ..., "columns": ["start_s", ...], ...}       the header
    [12.345678, 0.004321, 0.000210, 1, 0, 8, 8, 0, 8, 2048, 0, 301, 0]          a step, in the order of the columns

`StepLog` keeps the times of the loop's turns; where the steps go is its caller's affair. `StepFile` is the file. It grows to a
bound, is then set aside under the same name with `.old`, and begun anew: the latest steps are always there.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.errors import ConfigError
from penstock.lines import LineFile
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.features import COLUMNS, STEPS_VERSION, Features, StepTime, features_of
from penstock.runtime.engine.loop.listeners import StepArrival, StepListener

MAX_LINES = 1_000_000
LOGGER = logging.getLogger(__name__)


class StepLog(StepListener):
    """Tells `write` of each step once all of its turn is known.

        turned    launched       arrived        ended              turned
         |-- host --|--- device ----|--- host ---|-- the caller's ---|

    With steps in flight (`overlaps`) launching is the host's work, and only waiting for an output is not.
    """

    def __init__(self, write: Callable[[StepTime], None], *, overlaps: bool = False) -> None:
        self._write = write
        self._overlaps = overlaps
        self._launches: deque[tuple[Features, float, float]] = deque()
        self._collected: list[tuple[Features, float, float]] = []
        """Steps of this turn whose tokens are there: the rest before them, and the device's time for them."""
        self._idle_since_s: float | None = None
        self._origin_s: float | None = None
        self._turn_s = 0.0
        self._end_s = 0.0
        self._output_s = 0.0
        self._blocked_s = 0.0
        """Of this turn, spent waiting for the device."""

    def turned(self, now: float) -> None:
        self._report(now, is_busy=True)
        if self._origin_s is None:
            self._origin_s = now
        self._turn_s, self._blocked_s = now, 0.0

    def launched(self, batch: Batch, now: float) -> None:
        rest_s = 0.0 if self._idle_since_s is None else self._turn_s - self._idle_since_s
        self._idle_since_s = None
        self._launches.append((features_of(batch), rest_s, now))

    def arrived(self, arrival: StepArrival) -> None:
        asked_s, now = arrival.asked_s, arrival.now
        if self._launches:
            features, rest_s, launch_s = self._launches.popleft()
            self._collected.append((features, rest_s, now - max(launch_s, self._output_s)))
            self._blocked_s += now - (asked_s if self._overlaps else launch_s)
        self._output_s = now

    def lost(self) -> None:
        self._launches.clear()

    def ended(self, now: float, *, has_work: bool) -> None:
        self._end_s = now
        if not has_work:
            self.resting()

    def resting(self) -> None:
        self._report(self._end_s, is_busy=False)
        if self._idle_since_s is None and self._origin_s is not None and not self._launches:
            self._idle_since_s = self._end_s

    def _report(self, until_s: float, *, is_busy: bool) -> None:
        """A turn that collected several steps took the host's time for all of them."""
        if not self._collected:
            return
        host_s = max(until_s - self._turn_s - self._blocked_s, 0.0) / len(self._collected)
        start_s = self._turn_s - (self._origin_s or 0.0)
        for features, rest_s, device_s in self._collected:
            self._write(StepTime(start_s, device_s, host_s, is_busy, rest_s, features))
        self._collected.clear()


class StepFile:
    """Where steps are written. A disk that fails loses lines, never a step."""

    def __init__(self, path: Path, facts: Mapping[str, object], *, max_lines: int = MAX_LINES) -> None:
        self._path = path
        self._header = json.dumps({"penstock_steps": STEPS_VERSION, "columns": COLUMNS, **facts}).encode()
        self._max_lines = max_lines
        self._num_lines = 0
        self._is_stuck = False
        """It is full and another could not be begun."""
        self._file = self._begin()

    def write(self, step: StepTime) -> None:
        if self._num_lines >= self._max_lines and not self._begin_anew():
            return
        start_s, device_s, host_s, is_busy, rest_s, features = step
        numbers = ",".join(map(str, features))
        self._num_lines += 1
        self._file.write(f"[{start_s:.6f},{device_s:.7f},{host_s:.7f},{is_busy:d},{rest_s:.6f},{numbers}]".encode())

    def _begin_anew(self) -> bool:
        try:
            file = self._begin()
        except (OSError, ConfigError) as error:
            if not self._is_stuck:
                LOGGER.warning("--step-log is full and cannot be begun anew: %s; steps are lost until it can", error)
            self._is_stuck = True
            return False
        self._file.close()
        self._file, self._num_lines, self._is_stuck = file, 0, False
        return True

    def _begin(self) -> LineFile:
        """A file with a header. What has the name already is set aside."""
        if self._path.is_file():
            self._path.replace(self._path.with_name(self._path.name + ".old"))
        file = LineFile(self._path, "--step-log", is_new=True)
        file.write(self._header)
        if file.num_lost:
            raise ConfigError(f"--step-log {self._path} cannot be written; choose another file")
        return file
