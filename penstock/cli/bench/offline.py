"""What `bench throughput` and `bench latency` share: a model in this process, prompts of random tokens, times of every request.

No server and no network: what is measured is the engine alone.
"""

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.amounts import counted
from penstock.console.progress import ProgressBar
from penstock.console.show import cell, print_table
from penstock.metrics.histogram import Histogram
from penstock.metrics.summary import Summary, summarize
from penstock.metrics.timeline import Outcome, Timeline
from penstock.runtime.core.request import Request
from penstock.tools.bench.report.interval import interval
from penstock.tools.workload.workload import Recipe

if TYPE_CHECKING:
    from penstock.offline.completion import Update
    from penstock.offline.llm import LLM

INTERRUPTED_STATUS = 130


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """Requests that were all handed over at once."""

    summary: Summary
    prefill_s: float
    """Until every request had its first token."""


def run_offline(llm: "LLM", requests: Sequence[Request], name: str) -> OfflineRun:
    timelines = [Timeline(0.0, len(request.prompt)) for request in requests]
    gaps = Histogram()
    num_ended = 0
    with ProgressBar("requests") as progress:
        start_s = time.perf_counter()

        def take(update: "Update") -> None:
            nonlocal num_ended
            now_s, completion = time.perf_counter() - start_s, update.completion
            timeline = timelines[completion.index]
            if update.num_tokens:
                if timeline.last_token_s is None:
                    timeline.first_token_s = now_s
                else:
                    gaps.add(now_s - timeline.last_token_s)
                timeline.last_token_s = now_s
                timeline.num_tokens += update.num_tokens
            if completion.is_finished and not timeline.is_over:
                timeline.num_cached = completion.prefix.num_tokens if completion.prefix else 0
                timeline.end_s, timeline.outcome, timeline.num_unended = now_s, Outcome.LENGTH, 0
                num_ended += 1
                progress(name, num_ended, len(requests))

        llm.generate([request.prompt for request in requests], [request.params for request in requests], on_update=take)
        duration_s = time.perf_counter() - start_s
    prefill_s = max((timeline.first_token_s or 0.0 for timeline in timelines), default=0.0)
    return OfflineRun(summarize(timelines, duration_s, gaps=gaps), prefill_s)


def run_fresh(llm: "LLM", recipe: Recipe, seed: int, name: str) -> OfflineRun:
    """The requests of a recipe with tokens that no cache has seen."""
    return run_offline(llm, recipe.make_fresh(seed, secrets.token_hex(8)).requests, name)


def repeat_offline(llm: "LLM", recipe: Recipe, seed: int, number: int) -> tuple[list[OfflineRun], int]:
    """So many runs, and the status to exit with. Ctrl-C ends them early; those that are done are kept."""
    runs: list[OfflineRun] = []
    try:
        while len(runs) < number:
            runs.append(run_fresh(llm, recipe, seed, f"run {len(runs) + 1} of {number}"))
    except KeyboardInterrupt:
        if not runs:
            raise
        print(f"penstock: interrupted: the figures are of {len(runs)} of {counted(number, 'run')}", file=sys.stderr)
        return runs, INTERRUPTED_STATUS
    return runs, 0


def print_intervals(rows: Mapping[str, Sequence[float]], title: str = "") -> None:
    """Each figure over the runs: its mean, how sure it is, and its ends."""
    table: list[tuple[Any, ...]] = []
    for name, values in rows.items():
        found = interval(values)
        half = "" if found.half_width is None else f"+- {cell(found.half_width)}"
        table.append((name, found.mean, half, min(values), max(values)))
    print_table((title, "mean", "95 %", "least", "most"), table)
