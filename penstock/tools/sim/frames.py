"""A simulation as columns of bounded length, for a page that plays it back: steps, load and requests over virtual time."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.metrics.timeline import Timeline
from penstock.runtime.core.scheduler import SchedulerLoad
from penstock.tools.sim.tracing import SimulationTracer

MAX_ROWS = 2400
"""Of steps and of loads, each replica."""
MAX_REQUESTS = 10_000

Row = tuple[float, ...]


class Frames(SimulationTracer):
    """Called as a tracer is."""

    def __init__(self, on_progress: Callable[[float], None] | None = None) -> None:
        super().__init__(max_events=0)
        self._steps: dict[str, list[Row]] = {}
        self._loads: dict[str, list[Row]] = {}
        self._requests: list[Row] = []
        self._on_progress = on_progress
        self._report_s = 0.0

    def steps(
        self, name: str, start_s: float, end_s: float, num_steps: int, num_sequences: int, num_prompt: int
    ) -> None:
        self._steps.setdefault(name, []).append((start_s, end_s, num_steps, num_sequences, num_prompt))
        if self._on_progress is not None and end_s >= self._report_s:
            self._report_s = max(end_s * 1.15, end_s + 1.0)
            self._on_progress(round(end_s, 3))

    def load(self, name: str, now: float, load: SchedulerLoad) -> None:
        row = (now, load.num_running, load.num_waiting, round(load.kv_usage_fraction, 4))
        self._loads.setdefault(name, []).append(row)

    def requests(self, timelines: Sequence[Timeline]) -> None:
        """Arrival, first token, last token, end, prompt, cached, tokens, and whether it succeeded; in order of arrival."""
        rows: list[Row] = [
            (
                one.arrival_s,
                -1.0 if one.first_token_s is None else one.first_token_s,
                -1.0 if one.last_token_s is None else one.last_token_s,
                one.arrival_s if one.end_s is None else one.end_s,
                one.num_prompt,
                one.num_cached,
                one.num_tokens,
                1.0 if one.outcome is not None and one.outcome.is_success else 0.0,
            )
            for one in timelines
        ]
        self._requests = sorted(rows)[:MAX_REQUESTS]

    def data(self) -> dict[str, Any]:
        names = sorted(self._steps.keys() | self._loads.keys(), key=_by_number)
        return {
            "replicas": [
                {
                    "name": name,
                    "steps": [_rounded(row) for row in _merged(self._steps.get(name, []))],
                    "loads": [_rounded(row) for row in loads[:: max(-(-len(loads) // MAX_ROWS), 1)]],
                }
                for name in names
                for loads in (self._loads.get(name, []),)
            ],
            "requests": [_rounded(row) for row in self._requests],
        }


def _by_number(name: str) -> tuple[str, int]:
    """`prefill 2` comes before `prefill 10`."""
    word, _, number = name.rpartition(" ")
    return (word, int(number)) if number.isdecimal() else (name, 0)


def _merged(rows: list[Row]) -> list[Row]:
    """Merge neighbouring steps until there are few enough: from the first's start to the last's end."""
    size = -(-len(rows) // MAX_ROWS)
    if size <= 1:
        return rows
    found: list[Row] = []
    for first in range(0, len(rows), size):
        group = rows[first : first + size]
        found.append(
            (
                group[0][0],
                group[-1][1],
                sum(row[2] for row in group),
                max(row[3] for row in group),
                sum(row[4] for row in group),
            )
        )
    return found


def _rounded(row: Row) -> Row:
    return tuple(round(value, 5) for value in row)
