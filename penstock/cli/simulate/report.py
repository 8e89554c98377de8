"""What `penstock simulate` prints: tables for people, data for machines, and in words what bound the run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import product
from typing import Any

from penstock.amounts import format_bytes
from penstock.console.show import print_table, printable
from penstock.metrics.summary import Slo, Summary, summarize
from penstock.tools.sim.queueing import QueueFigures
from penstock.tools.sim.simulation import Fleet, ReplicaReport, Result
from penstock.tools.workload.workload import Workload

LATENCIES = ("TTFT", "TPOT", "ITL", "E2E")
SHARES = ("mean", "p50", "p90", "p95", "p99", "max")
MAX_ROWS = 32
"""Replicas shown one by one."""


def as_data(
    asked: Mapping[str, Any],
    step_times: Mapping[str, Any],
    fleet: Fleet,
    workload: Workload,
    results: Mapping[str, Result],
    queues: Mapping[str, QueueFigures],
) -> dict[str, Any]:
    """Everything that was asked and found, as JSON holds it."""
    return {
        "asked": asked,
        "sizing": asdict(fleet.sizing),
        "step_times": step_times,
        "workload": {
            "num_requests": len(workload),
            "num_prompt_tokens": workload.num_prompt_tokens,
            "num_output_tokens": workload.num_output_tokens,
            "span_s": workload.span_s,
            "num_unanswered": workload.num_unanswered,
        },
        "results": {
            name: {
                "summary": asdict(result.summary),
                "bound": bound(result, queues[name].rho),
                "queue": asdict(queues[name]),
                "groups": {group: asdict(summary) for group, summary in groups_of(result).items()},
                **{name: getattr(result, name) for name in _COUNTS},
                "replica_seconds": result.replica_seconds,
                "replicas": [
                    asdict(one) | {"history": [sample._asdict() for sample in one.history]} for one in result.replicas
                ],
            }
            for name, result in results.items()
        },
    }


_COUNTS = ("num_refused", "num_starts", "num_stops", "num_transfers", "num_lost_transfers", "mean_transfer_s")


def bound(result: Result, rho: float | None = None) -> str:
    """What kept the fleet from being faster, in words."""
    seconds = result.replica_seconds
    if seconds <= 0.0:
        return "nothing was served"

    def share(name: str) -> float:
        return math.fsum(getattr(one, name) * one.seconds for one in result.replicas) / seconds

    reasons = {
        "KV memory: requests waited for blocks": share("waiting_for_blocks_fraction"),
        "--max-sequences: requests waited while as many ran as may": share("waiting_for_rows_fraction"),
        "steps: requests waited for their turn in one, or for a batch to end": share("waiting_for_turn_fraction"),
    }
    reason, most = max(reasons.items(), key=lambda item: item[1])
    if most >= 0.05:
        return f"{reason} for {100 * most:.0f} % of the time"
    busy = share("busy_fraction")
    if rho is not None:
        if rho >= 0.8:
            return f"step time: rho is {rho:.2f}, though hardly any request waited"
        return f"nothing: rho is {rho:.2f}, so {100 * (1 - rho):.0f} % of the capacity is left"
    return "step time" if busy >= 0.8 else f"nothing: replicas idled for {100 * (1 - busy):.0f} % of the time"


def groups_of(result: Result, slo: Slo | None = None) -> dict[str, Summary]:
    """By tenant and priority, where requests have any."""
    names = sorted({one.group for one in result.timelines})
    if names in ([], [""]):
        return {}
    return {
        name or "the others": summarize(
            [one for one in result.timelines if one.group == name], result.summary.duration_s, slo
        )
        for name in names
    }


def unstable_in_words(queue: QueueFigures) -> str:
    """Why latencies say nothing of this run, or nothing."""
    found = queue.stability
    if found.refused_last:
        return (
            f"unstable: {found.refused_last:,} of the last requests were refused. Latencies of the others tell how long "
            "the queue may get, not how the fleet does; lower the rate or add capacity"
        )
    if not found.is_stable:
        return (
            f"unstable: {found.waiting_last:,.0f} waited while the last quarter came, {found.waiting_before:,.0f} in the "
            "quarter before. The queue grows for as long as requests come, so latencies only say how long this run was; lower "
            "the rate or add capacity"
        )
    return ""


def _queue_rows(queue: QueueFigures) -> dict[str, object]:
    law = f"{queue.inside:,.1f} = {queue.ended_per_s:.3g}/s x {queue.time_s:.3g} s"
    rows = {
        "offered, requests/s": queue.offered_per_s,
        "capacity, requests/s": queue.capacity_per_s,
        "utilisation (rho)": queue.rho,
        "inside (L = rate x time)": law,
    }
    return {name: value for name, value in rows.items() if value is not None}


def print_heading(rows: list[tuple[str, str]], fleet: Fleet, workload: Workload, slo: Slo) -> None:
    sizing = fleet.sizing
    rows = [
        *rows,
        (
            "KV cache",
            f"{sizing.num_cached_tokens:,} tokens a replica in {sizing.num_blocks:,} blocks of {sizing.block_size}, "
            f"{format_bytes(sizing.kv_bytes)} on a device",
        ),
        (
            "load",
            f"{len(workload):,} requests{_when(workload)}, {workload.num_prompt_tokens:,} prompt tokens, "
            f"{workload.num_output_tokens:,} to generate"
            + (f"; {workload.num_unanswered:,} without an answer left out" if workload.num_unanswered else ""),
        ),
        ("goodput", f"of requests with {_targets(slo)}"),
    ]
    if fleet.guessing is not None:
        expected = f"{fleet.guessing.tokens_per_round:.2f} tokens a round"
        is_auto = fleet.guessing.num_drafts is None
        rows.append(("speculation", f"as many as pay, at most {expected}" if is_auto else f"{expected} expected"))
    for name, text in rows:
        print(f"{name:12}{printable(text)}")
    print()


def _when(workload: Workload) -> str:
    if workload.later:
        return f", begun by {len(workload.requests):,} within {workload.span_s:,.1f} s"
    return f" in {workload.span_s:,.1f} s"


def _targets(slo: Slo) -> str:
    asked = {"TTFT": slo.ttft_s, "TPOT": slo.tpot_s, "E2E": slo.e2e_s}
    return ", ".join(f"{name} up to {1e3 * value:,.0f} ms" for name, value in asked.items() if value is not None)


def print_result(result: Result, queue: QueueFigures, slo: Slo) -> None:
    summary, fault = result.summary, unstable_in_words(queue)
    if fault:
        print(fault)
    else:
        latencies = {name: getattr(summary, name.lower()) for name in LATENCIES}
        rows = [(name, *(1e3 * getattr(values, share) for share in SHARES)) for name, values in latencies.items()]
        print_table(("ms", *SHARES), rows)
    print()
    print_table(("outcome", ""), list((_outcome_rows(result) | _queue_rows(queue)).items()))
    if queue.rho is not None and queue.rho > 1.0 and not fault:
        print("more is offered than can be carried: a longer run would queue without end")
    print()
    if groups := groups_of(result, slo):
        print_table(("whose", *GROUP_FIGURES), _rows(GROUP_FIGURES, groups))
        print()
    shown = result.replicas[:MAX_ROWS]
    print_table(("replica", *REPLICA_FIGURES), _rows(REPLICA_FIGURES, {one.name: one for one in shown}))
    if len(result.replicas) > MAX_ROWS:
        print(f"and {len(result.replicas) - MAX_ROWS:,} more; --json lists them all")
    print()
    print(f"bound by {bound(result, queue.rho)}")


Figures = Mapping[str, Callable[[Any], object]]
"""Columns of a table, and what each shows of a row's subject."""
GROUP_FIGURES: Figures = {
    "requests": lambda one: one.num_requests,
    "TTFT p50, ms": lambda one: 1e3 * one.ttft.p50,
    "TTFT p99, ms": lambda one: 1e3 * one.ttft.p99,
    "TPOT p50, ms": lambda one: 1e3 * one.tpot.p50,
    "tokens/s": lambda one: one.output_tokens_per_s,
    "goodput, %": lambda one: 100.0 * one.good_fraction,
}
REPLICA_FIGURES: Figures = {
    "requests": lambda one: one.num_requests,
    "steps": lambda one: one.num_steps,
    "running": lambda one: one.mean_running,
    "waiting": lambda one: one.mean_waiting,
    "cached %": lambda one: _cached_percent(one),
    "KV %": lambda one: 100.0 * one.mean_kv_usage_fraction,
    "KV max %": lambda one: 100.0 * one.max_kv_usage_fraction,
    "preemptions": lambda one: one.num_preemptions,
    "seconds": lambda one: one.seconds,
}


def _rows(figures: Figures, subjects: Mapping[str, object]) -> list[tuple[object, ...]]:
    return [(name, *(figure(one) for figure in figures.values())) for name, one in subjects.items()]


def _cached_percent(one: Summary | ReplicaReport) -> float:
    return 100.0 * one.num_cached_tokens / one.num_prompt_tokens if one.num_prompt_tokens else 0.0


def print_comparison(results: Mapping[str, Result], queues: Mapping[str, QueueFigures]) -> None:
    """One column a strategy, one row a figure. Where a queue grew to the end its latencies are left out."""
    columns = []
    for strategy, result in results.items():
        fault = unstable_in_words(queues[strategy])
        column: dict[str, object] = {}
        for name, share in product(("TTFT", "TPOT", "E2E"), ("p50", "p99")):
            value_s = getattr(getattr(result.summary, name.lower()), share)
            column[f"{name} {share}, ms"] = "unstable" if fault else 1e3 * value_s
        columns.append(column | _outcome_rows(result) | _queue_rows(queues[strategy]))
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(column.get(name, 0) for column in columns)) for name in names]
    print_table(("batching", *results), rows)


def _outcome_rows(result: Result) -> dict[str, object]:
    summary = result.summary
    others = {name: count for name, count in summary.outcomes.items() if count and name not in ("stop", "length")}
    return {
        "duration, s": summary.duration_s,
        "requests/s": summary.requests_per_s,
        "output tokens/s": summary.output_tokens_per_s,
        "goodput, requests/s": summary.good_requests_per_s,
        "goodput, %": 100.0 * summary.good_fraction,
        "complete": summary.num_successes,
        **others,
        "prompt tokens cached, %": _cached_percent(summary),
        "KV used at most, %": 100.0 * max(one.max_kv_usage_fraction for one in result.replicas),
        "preemptions": result.num_preemptions,
        "steps": result.num_steps,
        **_technique_rows(result),
    }


def _technique_rows(result: Result) -> dict[str, object]:
    """Only of what was used."""
    rows: dict[str, object] = {}
    num_drafted = sum(one.num_drafted for one in result.replicas)
    if num_drafted:
        rows["drafts accepted, %"] = 100.0 * sum(one.num_accepted for one in result.replicas) / num_drafted
    if result.num_refused:
        rows["refused by the router"] = result.num_refused
    if result.num_transfers:
        rows["prompts handed over"] = result.num_transfers
        rows["transfer, ms"] = 1e3 * result.mean_transfer_s
        rows["computed again"] = result.num_lost_transfers
    if result.num_starts or result.num_stops:
        rows["replicas started"] = result.num_starts
        rows["replicas stopped"] = result.num_stops
        rows["replica hours"] = result.replica_seconds / 3600.0
    return rows
