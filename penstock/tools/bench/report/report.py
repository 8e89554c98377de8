"""A benchmark as JSON: what was asked, of whom, by whom, what came of it, and what to doubt. The page and the comparison read
nothing else.

`version` changes when a field changes its meaning or goes away.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.metrics.summary import quantile
from penstock.tools.bench.client.answer import Answer
from penstock.tools.bench.client.target import TargetServer
from penstock.tools.bench.knee import Knee
from penstock.tools.bench.report.figures import FORMULAS, Figures, row_of
from penstock.tools.bench.report.flags import Doubt, worst_first
from penstock.tools.bench.report.interval import interval
from penstock.tools.bench.session import BenchRun

SCHEMA = "penstock-bench"
VERSION = 1
NUM_QUANTILES = 101
MOST_BINS = 120
LEAST_BINS = 12

HEADLINES = {
    "ttft_p50_ms": ("TTFT p50, ms", "lower"),
    "ttft_p99_ms": ("TTFT p99, ms", "lower"),
    "tpot_p50_ms": ("TPOT p50, ms", "lower"),
    "tpot_p99_ms": ("TPOT p99, ms", "lower"),
    "itl_p99_ms": ("ITL p99, ms", "lower"),
    "e2e_p50_ms": ("E2E p50, ms", "lower"),
    "e2e_p99_ms": ("E2E p99, ms", "lower"),
    "requests_per_s": ("requests/s", "higher"),
    "output_tokens_per_s": ("output tokens/s", "higher"),
    "good_requests_per_s": ("goodput, requests/s", "higher"),
    "good_percent": ("goodput, %", "higher"),
    "failed_percent": ("failed, %", "lower"),
}
"""The figures that runs are repeated and compared for: their names, and which way is better."""


def headline(run: Mapping[str, Any], name: str) -> float | None:
    """Of a run in a report; None for a latency that none of its requests had."""
    latency = run["summary"].get(name.partition("_")[0])
    return None if latency is not None and not latency["count"] else run["headlines"][name]


def headlines_of(figures: Figures) -> dict[str, float]:
    summary = figures.summary
    latencies = {name: name.split("_") for name in HEADLINES if name.endswith("_ms")}
    return {name: 1e3 * getattr(getattr(summary, kind), share) for name, (kind, share, _) in latencies.items()} | {
        "requests_per_s": summary.requests_per_s,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "good_requests_per_s": summary.good_requests_per_s,
        "good_percent": 100.0 * summary.good_fraction,
        "failed_percent": 100.0 * figures.failed_fraction,
    }


def report_of(
    runs: Sequence[BenchRun],
    *,
    target: TargetServer,
    url: str,
    asked: Mapping[str, Any],
    load: str,
    workload: Mapping[str, Any],
    client: Mapping[str, Any],
    knee: Knee | None = None,
    with_rows: bool = False,
) -> dict[str, Any]:
    """`load` tells it in words; `workload` is what makes two benchmarks comparable: everything about it but the words sent."""
    measured = [headlines_of(run.figures) for run in runs]
    repeated = measured if knee is None else []
    said = json.dumps(workload, sort_keys=True, default=str)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "client": dict(client),
        "target": {
            "url": url,
            "model": target.model,
            "route": target.route,
            "server": target.server,
            "exact_answers_asked": target.dialect.is_exact,
            "prompts": _prompt_source(target),
            "prompt_overhead": target.vocabulary.overhead,
        },
        "asked": dict(asked),
        "load": load,
        "workload": dict(workload),
        "workload_digest": hashlib.sha256(said.encode()).hexdigest()[:16],
        "formulas": FORMULAS,
        "verdict": verdict_of(runs),
        "is_partial": any(run.figures.is_interrupted for run in runs) or (knee is not None and knee.is_partial),
        "flags": [asdict(flag) for flag in merged_flags(_judged(runs, knee))],
        "headlines": {
            name: asdict(interval([one[name] for one in repeated])) | {"values": [one[name] for one in repeated]}
            for name in HEADLINES
            if repeated
        },
        "knee": None if knee is None else _knee_data(knee),
        "runs": [_run_data(run, with_rows=with_rows) for run in runs],
    }


def _knee_data(knee: Knee) -> dict[str, Any]:
    trials = [asdict(trial) | {"is_trusted": trial.is_trusted} for trial in knee.trials]
    return asdict(knee) | {"trials": trials, "is_bounded_by_client": knee.is_bounded_by_client}


def verdict_of(runs: Sequence[BenchRun]) -> str:
    """`valid`, or the name of the first reason why the figures are not the server's."""
    flags = [flag for run in runs for flag in run.flags if flag.level == "invalid"]
    return flags[0].name if flags else "valid"


def _judged(runs: Sequence[BenchRun], knee: Knee | None) -> Sequence[BenchRun]:
    """Runs whose doubts are the report's: of a search, that at its knee, for others are meant to fail; and those of no use."""
    if knee is None or knee.rate is None:
        return runs
    return [run for run in runs if run.figures.rate == knee.rate or not run.is_valid]


def merged_flags(runs: Sequence[BenchRun]) -> list[Doubt]:
    """Each doubt once, in the words of the first run that had it."""
    seen: dict[str, Doubt] = {}
    for run in runs:
        for flag in run.flags:
            seen.setdefault(flag.name, flag)
    return worst_first(seen.values())


def knee_words(report: Mapping[str, Any]) -> str:
    """What came of a search, in a sentence."""
    knee, slo = report["knee"], report["asked"]["target"]["slo"]
    rate, beyond = knee["rate"], knee["beyond"]
    faults = {trial.get("fault", "") for trial in knee["trials"]} - {"", "client-bound"}
    if faults:
        least = f"at least {rate:.4g} requests/s meet {slo}" if rate is not None else "nothing is known of its knee"
        return f"The search ended because the server did not answer ({', '.join(sorted(faults))}); {least}."
    if knee["is_partial"]:
        bounds = [f"at least {rate:.4g}"] if rate is not None else []
        bounds += [f"below {beyond:.4g}"] if beyond is not None else []
        found = f"the knee is {', '.join(bounds)} requests/s" if bounds else "nothing is known of the knee"
        return f"Partial: the search was interrupted; {found}."
    if knee["is_bounded_by_client"]:
        found = " before the server was" if rate is None else f"; at least {rate:.4g} requests/s meet {slo}"
        return f"This client was at its end{found}."
    if rate is None:
        tried = (
            "Even one request at a time does not meet" if beyond is None else f"Not even {beyond:.4g} requests/s meet"
        )
        return f"{tried} {slo}."
    if beyond is None:
        return f"At least {rate:.4g} requests/s meet {slo}, and more were not tried."
    return f"Knee: {rate:.4g} requests/s meet {slo}; {beyond:.4g} do not."


def facts_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was asked of whom, and what of it came about, each in a line."""
    target, last = report["target"], report["runs"][-1]
    lengths, cache, health = last["lengths"], last["cache"], last["health"]
    hits = "not told" if cache["hit_fraction"] is None else f"{100 * cache['hit_fraction']:.1f} % of prompt tokens"
    repeated = f"{100 * cache['repeated_fraction']:.1f} % (chat template, shared beginnings, earlier turns)"
    return [
        ("server", ", ".join(filter(None, (target["url"], target["model"], target["server"])))),
        ("load", report.get("load", "")),
        ("good is", report["asked"]["target"]["slo"]),
        ("prompts", f"{target['prompts']}; {_prompt_lengths(lengths)}"),
        ("answers", f"{lengths['answer_mean']:,.1f} tokens, {lengths['answer_asked']:,.1f} asked, "
                    f"{last['tokens_per_piece']:.2f} a piece"),
        ("cache hits", f"{hits} ({cache['source']}); the load itself repeats {repeated}"),
        ("client", f"{100 * health['cpu_fraction']:.0f} % of a core; late at p99: loop {1e3 * health['lag_p99_s']:.1f} ms, "
                   f"sending {1e3 * last['send_late_p99_s']:.1f} ms"),
    ]  # fmt: skip


def _prompt_lengths(lengths: Mapping[str, Any]) -> str:
    if not lengths["num_checked"]:
        return "their length is not told"
    reported = f"{lengths['prompt_mean']:,.1f} tokens, {lengths['prompt_asked']:,.1f} asked"
    return f"{reported}, at most {lengths['prompt_error_max']:,} off"


def figure(value: float) -> str:
    """A number to four digits, never as a power of ten."""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _prompt_source(target: TargetServer) -> str:
    if target.route == "completions" and target.vocabulary.token_ids:
        return "token ids"
    if target.has_tokenizer:
        return "words measured with the server's tokenizer"
    return "words calibrated on usage" if target.is_calibrated else "words, taken for one token each"


def _run_data(run: BenchRun, *, with_rows: bool) -> dict[str, Any]:
    figures = run.figures
    data = asdict(figures) | {
        "flags": [asdict(flag) for flag in run.flags],
        "headlines": headlines_of(figures),
        "quantiles": _quantiles(run.answers),
        "series": series_of(run.answers, figures.summary.duration_s),
    }
    return data | ({"rows": [row_of(answer) for answer in run.answers]} if with_rows else {})


def _quantiles(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Of successes, in milliseconds, from the least to the most in even steps."""
    timelines = [answer.timeline() for answer in answers if answer.is_success]
    found: dict[str, list[float]] = {}
    for name in ("ttft", "tpot", "e2e"):
        times = (getattr(timeline, f"{name}_s") for timeline in timelines)
        values = sorted(1e3 * value for value in times if value is not None)
        shares = [number / (NUM_QUANTILES - 1) for number in range(NUM_QUANTILES)]
        found[name] = [round(quantile(values, share), 4) for share in shares] if values else []
    return found


def series_of(answers: Sequence[Answer], duration_s: float) -> dict[str, Any]:
    """Tokens a second, arrivals a second and requests under way, in even bins of time."""
    if duration_s <= 0.0:
        return {"bin_s": 0.0, "tokens_per_s": [], "arrivals_per_s": [], "in_flight": []}
    # As many as leave several arrivals in each: fewer would show chance alone.
    num_bins = min(max(len(answers) // 4, LEAST_BINS), MOST_BINS)
    bin_s = duration_s / num_bins
    tokens, arrivals, flight = ([0.0] * num_bins for _ in range(3))
    for answer in answers:
        weight = answer.num_tokens / len(answer.piece_times) if answer.piece_times else 0.0
        for time_s in answer.piece_times:
            tokens[_bin(time_s, bin_s, num_bins)] += weight / bin_s
        start, end_s = (
            _bin(answer.scheduled_s, bin_s, num_bins),
            answer.end_s if answer.end_s is not None else duration_s,
        )
        arrivals[start] += 1.0 / bin_s
        # Under way from arrival to end: whole bins between, shares of the first and the last.
        for number in range(start, _bin(end_s, bin_s, num_bins) + 1):
            inside_s = min(end_s, (number + 1) * bin_s) - max(answer.scheduled_s, number * bin_s)
            flight[number] += max(inside_s, 0.0) / bin_s
    named = {"tokens_per_s": tokens, "arrivals_per_s": arrivals, "in_flight": flight}
    return {"bin_s": bin_s} | {name: [round(value, 3) for value in values] for name, values in named.items()}


def _bin(time_s: float, bin_s: float, num_bins: int) -> int:
    return min(max(int(time_s / bin_s), 0), num_bins - 1)
