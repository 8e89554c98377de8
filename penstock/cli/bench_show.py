"""A benchmark on a terminal: doubts first, then tables, then what the words mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.bench.report import HEADLINES, knee_words
from penstock.cli.show import print_table, printable

MARKS = {"invalid": "!!", "warning": "!", "note": "-"}
LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2e"}
SHARES = ("mean", "p50", "p90", "p95", "p99", "max")


def print_report(report: Mapping[str, Any]) -> None:
    runs = report["runs"]
    _print_heading(report)
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


def _print_heading(report: Mapping[str, Any]) -> None:
    target, last = report["target"], report["runs"][-1]
    lengths, cache, health = last["lengths"], last["cache"], last["health"]
    hits = "not told" if cache["hit_fraction"] is None else f"{100 * cache['hit_fraction']:.1f} % of prompt tokens"
    rows = [
        ("server", f"{target['url']}, {target['model']}{', ' + target['server'] if target['server'] else ''}"),
        ("prompts", f"{target['prompts']}; {_prompt_lengths(lengths)}"),
        ("answers", f"{lengths['answer_mean']:,.1f} tokens, {lengths['answer_asked']:,.1f} asked, "
                    f"{last['tokens_per_piece']:.2f} a piece"),
        ("cache hits", f"{hits} ({cache['source']}); the workload repeats {100 * cache['repeated_fraction']:.1f} %"),
        ("client", f"{100 * health['cpu_fraction']:.0f} % of a core; late at p99: loop {1e3 * health['lag_p99_s']:.1f} ms, "
                   f"sending {1e3 * last['send_late_p99_s']:.1f} ms"),
    ]  # fmt: skip
    for name, text in rows:
        print(f"{name:12}{printable(text)}")
    print()


def _prompt_lengths(lengths: Mapping[str, Any]) -> str:
    if not lengths["num_checked"]:
        return "their length is not told"
    told = f"{lengths['prompt_mean']:,.1f} tokens, {lengths['prompt_asked']:,.1f} asked"
    return f"{told}, at most {lengths['prompt_error_max']:,} off"


def _print_run(run: Mapping[str, Any], title: str) -> None:
    summary = run["summary"]
    if not any(summary[key]["count"] for key in LATENCIES.values()):
        _print_failures(run)
        return
    rows = [(name, *(1e3 * summary[key][share] for share in SHARES)) for name, key in LATENCIES.items()]
    print_table(("ms", *SHARES), rows, title)
    print()
    outcomes = {name: count for name, count in summary["outcomes"].items() if count}
    print_table(
        ("", ""),
        [
            ("duration, s", summary["duration_s"]),
            *((f"requests: {name}", count) for name, count in outcomes.items()),
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
    rows = []
    for name, (words, _) in HEADLINES.items():
        found = report["headlines"][name]
        half = "" if found["half_width"] is None else f"+- {found['half_width']:,.4g}"
        rows.append((words, found["mean"], half, min(found["values"]), max(found["values"])))
    print_table((f"{len(report['runs'])} runs", "mean", "95 %", "least", "most"), rows)
    print()


def _print_knee(report: Mapping[str, Any]) -> None:
    knee = report["knee"]
    rows = []
    for trial, run in sorted(zip(knee["trials"], report["runs"], strict=True), key=lambda pair: pair[0]["rate"]):
        found = run["headlines"]
        met = "yes" if trial["is_met"] else "over-saturated" if run["is_saturated"] else "no"
        rows.append(
            (
                "one at a time" if trial["is_alone"] else f"{trial['rate']:.4g}",
                met if trial["is_trusted"] else "client-bound",
                *(found[name] for name in ("good_percent", "good_requests_per_s", "output_tokens_per_s")),
                *(found[name] for name in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")),
            )
        )
    columns = ("rate", "targets met", "good %", "goodput/s", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99")
    print_table(columns, rows)
    print()
    print(knee_words(report))
