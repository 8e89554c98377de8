"""A benchmark on a terminal: doubts first, then tables, then what the words mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.cli.bench.offline import print_intervals
from penstock.console.show import print_table, printable
from penstock.tools.bench.report.report import HEADLINES, facts_of, headline, knee_words

MARKS = {"invalid": "!!", "warning": "!", "note": "-"}
LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2e"}
OUTCOMES = {"length": "complete", "stop": "complete, of fewer tokens"}
"""Of requests that were answered; the others are told by their names."""
SHARES = ("mean", "p50", "p90", "p95", "p99", "max")

TRIED = {
    "good_percent": "good %",
    "good_requests_per_s": "goodput/s",
    "output_tokens_per_s": "tokens/s",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p99_ms": "p99",
    "tpot_p50_ms": "TPOT p50",
    "tpot_p99_ms": "p99",
}
"""Of each rate that a search has tried."""


def print_report(report: Mapping[str, Any]) -> None:
    runs = report["runs"]
    for name, text in facts_of(report):
        print(f"{name:12}{printable(text)}")
    print()
    print_flags(report["flags"])
    if report["verdict"] == "client-bound" and report["knee"] is None:
        print("No latencies are shown: they would be this client's own.")
        return
    if report["knee"] is not None:
        _print_knee(report)
    elif len(runs) > 1:
        _print_repeats(report)
    if report["knee"] is None:
        _print_run(runs[-1], f"run {len(runs)} of {len(runs)}" if len(runs) > 1 else "")
    print()
    for name, text in report["formulas"].items():
        print(f"{name:9}{text}")


def print_flags(flags: Sequence[Mapping[str, Any]]) -> None:
    for flag in flags:
        print(f"{MARKS[flag['level']]:3}{printable(flag['text'])}")
    if flags:
        print()


def _print_run(run: Mapping[str, Any], title: str) -> None:
    summary = run["summary"]
    if not any(summary[key]["count"] for key in LATENCIES.values()):
        _print_failures(run)
        return
    rows = [
        (name, *(1e3 * summary[key][share] for share in SHARES))
        for name, key in LATENCIES.items()
        if summary[key]["count"]  # answers of one token have neither TPOT nor ITL
    ]
    print_table(("ms", *SHARES), rows, title)
    print()
    outcomes = {name: count for name, count in summary["outcomes"].items() if count}
    print_table(
        ("", ""),
        [
            ("duration, s", summary["duration_s"]),
            *((OUTCOMES.get(name, name), count) for name, count in outcomes.items()),
            *((name, run[key]) for name, key in (("abandoned", "num_abandoned"), ("unsent", "num_unsent")) if run[key]),
            ("requests/s", summary["requests_per_s"]),
            ("output tokens/s", summary["output_tokens_per_s"]),
            ("goodput, requests/s", summary["good_requests_per_s"]),
            ("goodput, %", 100.0 * summary["good_fraction"]),
        ],
    )
    if run["failures"]:
        print()
        _print_failures(run)


def _print_failures(run: Mapping[str, Any]) -> None:
    print_table(("times", "failures"), [(f"{count:,}", text) for text, count in run["failures"].items()])


def _print_repeats(report: Mapping[str, Any]) -> None:
    runs = report["runs"]
    had = [name for name in HEADLINES if all(headline(run, name) is not None for run in runs)]
    print_intervals({HEADLINES[name][0]: report["headlines"][name]["values"] for name in had}, f"{len(runs)} runs")
    print()


def _print_knee(report: Mapping[str, Any]) -> None:
    knee = report["knee"]
    rows = []
    for trial, run in sorted(zip(knee["trials"], report["runs"], strict=True), key=lambda pair: pair[0]["rate"]):
        met = "yes" if trial["is_met"] else "over-saturated" if run["is_saturated"] else "no"
        rows.append(
            (
                "one at a time" if trial["is_alone"] else f"{trial['rate']:.4g}",
                trial["fault"] or met,
                *(headline(run, name) for name in TRIED),
            )
        )
    print_table(("rate", "targets met", *TRIED.values()), rows)
    print()
    print(knee_words(report))
