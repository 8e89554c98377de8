"""A simulation as a trace that browsers show (chrome://tracing, Perfetto): steps, load and requests over virtual time.

The number of events is bounded; what comes after the bound is counted and left out.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.metrics.timeline import Timeline
from penstock.runtime.core.scheduler import SchedulerLoad

MAX_EVENTS = 200_000
_REQUESTS = 0
"""The trace's process that holds requests; replicas have those after it."""
_US = 1e6


class SimulationTracer:
    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self.num_left_out = 0
        self._max_events = max_events
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}

    def steps(
        self, name: str, start_s: float, end_s: float, num_steps: int, num_sequences: int, num_prompt: int
    ) -> None:
        """Steps of a replica with the same members: that many sequences, and prompt tokens among them."""
        label = f"{num_sequences} sequences" + (f", {num_prompt} prompt tokens" if num_prompt else "")
        if num_steps > 1:
            label = f"{num_steps} x {label}"
        arguments = {"steps": num_steps, "sequences": num_sequences, "prompt tokens": num_prompt}
        self._add(
            name, {"ph": "X", "name": label, "ts": start_s * _US, "dur": (end_s - start_s) * _US, "args": arguments}
        )

    def load(self, name: str, now: float, load: SchedulerLoad) -> None:
        counts = {"running": load.num_running, "waiting": load.num_waiting}
        self._add(name, {"ph": "C", "name": "sequences", "ts": now * _US, "args": counts})
        usage = {"percent": round(100.0 * load.kv_usage_fraction, 2)}
        self._add(name, {"ph": "C", "name": "KV blocks", "ts": now * _US, "args": usage})

    def requests(self, timelines: Sequence[Timeline]) -> None:
        """Two spans each: until the first token, and from there to the last."""
        for number, timeline in enumerate(timelines):
            for event in _spans(number, timeline):
                self._append({"pid": _REQUESTS, "tid": 0, "cat": "request", "id": number, **event})

    def text(self) -> str:
        names = {_REQUESTS: "requests"} | {number: name for name, number in self._processes.items()}
        titles = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names.items()
        ]
        notes = {"events left out": self.num_left_out, "time": "virtual, in microseconds"}
        return json.dumps({"traceEvents": titles + self._events, "otherData": notes}, allow_nan=False)

    def _add(self, name: str, event: dict[str, Any]) -> None:
        self._append({"pid": self._processes.setdefault(name, len(self._processes) + 1), "tid": 0, **event})

    def _append(self, event: dict[str, Any]) -> None:
        if len(self._events) < self._max_events:
            self._events.append(event)
        else:
            self.num_left_out += 1


def _spans(number: int, timeline: Timeline) -> Iterator[dict[str, Any]]:
    end_s = timeline.arrival_s if timeline.end_s is None else timeline.end_s
    first_s = end_s if timeline.first_token_s is None else timeline.first_token_s
    outcome = timeline.outcome.value if timeline.outcome else ""
    facts = {"prompt": timeline.num_prompt, "cached": timeline.num_cached, "tokens": timeline.num_tokens}
    name = f"request {number}"
    yield {"ph": "b", "name": name, "ts": timeline.arrival_s * _US, "args": {**facts, "outcome": outcome}}
    yield {"ph": "b", "name": "to first token", "ts": timeline.arrival_s * _US}
    yield {"ph": "e", "name": "to first token", "ts": first_s * _US}
    if end_s > first_s:
        yield {"ph": "b", "name": "generating", "ts": first_s * _US}
        yield {"ph": "e", "name": "generating", "ts": end_s * _US}
    yield {"ph": "e", "name": name, "ts": end_s * _US}
