"""What `penstock simulate` prints: tables for people, data for machines, and in words what bound the run."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock.amounts import format_bytes
from penstock.console.show import print_table, printable
from penstock.metrics.summary import Percentiles, Slo, Summary, summarize
from penstock.tools.sim.queueing import QueueFigures
from penstock.tools.sim.simulation import Fleet, ReplicaReport, Result
from penstock.tools.workload.workload import Workload

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
                "replicas": [_replica_data(one) for one in result.replicas],
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
    rows: dict[str, object] = {}
    if queue.offered_per_s is not None:
        rows["offered, requests/s"] = queue.offered_per_s
    if queue.capacity_per_s is not None:
        rows["capacity, requests/s"] = queue.capacity_per_s
    if queue.rho is not None:
        rows["utilisation (rho)"] = queue.rho
    law = f"{queue.ended_per_s:.3g}/s x {queue.time_s:.3g} s"
    return rows | {"inside (L = rate x time)": f"{queue.inside:,.1f} = {law}"}


def _replica_data(replica: ReplicaReport) -> dict[str, Any]:
    return {**asdict(replica), "history": [sample._asdict() for sample in replica.history]}


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
        latencies = [(name, *_milliseconds(values)) for name, values in _latencies(summary).items()]
        print_table(("ms", "mean", "p50", "p90", "p95", "p99", "max"), latencies)
    print()
    print_table(("outcome", ""), list((_outcome_rows(result) | _queue_rows(queue)).items()))
    if queue.rho is not None and queue.rho > 1.0 and not fault:
        print("more is offered than can be carried: a longer run would queue without end")
    print()
    _print_groups(groups_of(result, slo))
    columns = (
        "replica",
        "requests",
        "steps",
        "running",
        "waiting",
        "cached %",
        "KV %",
        "KV max %",
        "preemptions",
        "seconds",
    )
    print_table(columns, [_replica_row(one) for one in result.replicas[:MAX_ROWS]])
    if len(result.replicas) > MAX_ROWS:
        print(f"and {len(result.replicas) - MAX_ROWS:,} more; --json lists them all")
    print()
    print(f"bound by {bound(result, queue.rho)}")


def _print_groups(groups: Mapping[str, Summary]) -> None:
    if not groups:
        return
    columns = ("whose", "requests", "TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms", "tokens/s", "goodput, %")
    rows = [
        (
            name,
            one.num_requests,
            1e3 * one.ttft.p50,
            1e3 * one.ttft.p99,
            1e3 * one.tpot.p50,
            one.output_tokens_per_s,
            100.0 * one.good_fraction,
        )
        for name, one in groups.items()
    ]
    print_table(columns, rows)
    print()


def print_comparison(results: Mapping[str, Result], queues: Mapping[str, QueueFigures]) -> None:
    """One column a strategy, one row a figure. Where a queue grew to the end its latencies are left out."""
    columns = []
    for strategy, result in results.items():
        fault = unstable_in_words(queues[strategy])
        column: dict[str, object] = {}
        for name, values in _latencies(result.summary).items():
            if name != "ITL" and fault:
                column[f"{name} p50, ms"] = column[f"{name} p99, ms"] = "unstable"
            elif name != "ITL":
                column[f"{name} p50, ms"] = values.p50 * 1e3
                column[f"{name} p99, ms"] = values.p99 * 1e3
        columns.append(column | _outcome_rows(result) | _queue_rows(queues[strategy]))
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(column.get(name, 0) for column in columns)) for name in names]
    print_table(("batching", *results), rows)


def _latencies(summary: Summary) -> dict[str, Percentiles]:
    return {"TTFT": summary.ttft, "TPOT": summary.tpot, "ITL": summary.itl, "E2E": summary.e2e}


def _milliseconds(values: Percentiles) -> list[float]:
    return [1e3 * value for value in (values.mean, values.p50, values.p90, values.p95, values.p99, values.max)]


def _outcome_rows(result: Result) -> dict[str, object]:
    summary = result.summary
    cached = summary.num_cached_tokens / summary.num_prompt_tokens if summary.num_prompt_tokens else 0.0
    rows: dict[str, object] = {
        "duration, s": summary.duration_s,
        "requests/s": summary.requests_per_s,
        "output tokens/s": summary.output_tokens_per_s,
    }
    rows["goodput, requests/s"] = summary.good_requests_per_s
    rows["goodput, %"] = 100.0 * summary.good_fraction
    others = {name: count for name, count in summary.outcomes.items() if count and name not in ("stop", "length")}
    return rows | {
        "complete": summary.num_successes,
        **others,
        "prompt tokens cached, %": 100.0 * cached,
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


def _replica_row(replica: ReplicaReport) -> tuple[object, ...]:
    cached = replica.num_cached_tokens / replica.num_prompt_tokens if replica.num_prompt_tokens else 0.0
    return (
        replica.name,
        replica.num_requests,
        replica.num_steps,
        replica.mean_running,
        replica.mean_waiting,
        100.0 * cached,
        100.0 * replica.mean_kv_usage_fraction,
        100.0 * replica.max_kv_usage_fraction,
        replica.num_preemptions,
        replica.seconds,
    )
