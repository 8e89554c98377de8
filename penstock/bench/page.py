"""A benchmark as one page for people: doubts, tables, plots. It holds all it needs and fetches nothing."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from penstock.bench.plot import Line, plot
from penstock.bench.report import HEADLINES, knee_words

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #667; --back: #fff; --line: #dde; --bad: #b3261e; --warn: #8a5a00 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8ea; --soft: #9aa4ae; --back: #14171a; --line: #2c3238; --bad: #ff8a80; --warn: #ffc266 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 1180px; margin: 2em auto;
  padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .9em .2em 0; border-bottom: 1px solid var(--line);
  text-align: right; font-variant-numeric: tabular-nums } td:first-child, th:first-child { text-align: left }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 1em }
svg { width: 100%; height: auto }
.invalid { color: var(--bad); font-weight: 700 } .warning { color: var(--warn); font-weight: 600 } .note { color: var(--soft) }
svg text { fill: var(--text) } svg .title { font-size: 13px; font-weight: 600 } svg .tick, svg .axis { font-size: 11px;
  fill: var(--soft) } svg .grid { stroke: var(--line) } polyline { fill: none; stroke-width: 1.8 }
.c0 { stroke: #2f6fde } .c1 { stroke: #d9822b } .c2 { stroke: #2e9e5b } .c3 { stroke: #b04ac9 } .c4 { stroke: #c23b3b }
.c5 { stroke: #5a7684 } circle { fill: var(--back); stroke-width: 1.8 }
"""
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def page_of(reports: Sequence[Mapping[str, Any]], names: Sequence[str] = (), extra: str = "") -> str:
    """One report, or several laid over each other under their names. `extra` is HTML put above the plots."""
    labels = list(names) or [str(report["target"]["model"]) for report in reports]
    title = " and ".join(labels)
    sections = [_section(label, report) for label, report in zip(labels, reports, strict=True)]
    formulas = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in reports[0]["formulas"].items()
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>penstock bench: {escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            extra,
            *sections,
            f'<div class="plots">{"".join(_plots(labels, reports))}</div>',
            f"<h2>What the words mean</h2><table>{formulas}</table></body></html>",
        ]
    )


def flag_list(flags: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(f'<li class="{escape(flag["level"])}">{escape(flag["text"])}</li>' for flag in flags)
    return f"<ul>{items}</ul>" if items else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _section(label: str, report: Mapping[str, Any]) -> str:
    target, client = report["target"], report["client"]
    facts = f"{target['model']} at {target['url']} ({target['route']}), {client['ended']}, {client['system']}"
    shown = flag_list(report["flags"])
    if report["verdict"] == "client-bound" and report["knee"] is None:
        return (
            f"<h2>{escape(label)}</h2><p>{escape(facts)}</p>{shown}<p>No figures: they would be the client's own.</p>"
        )
    rows = []
    for name, (words, _) in HEADLINES.items():
        values = [run["headlines"][name] for run in report["runs"]]
        found = report["headlines"].get(name)
        half = found["half_width"] if found else None
        rows.append((words, *values, "" if half is None else f"{found['mean']:,.4g} ± {half:,.3g}"))
    columns = [_run_name(report, number) for number in range(len(report["runs"]))]
    words = "" if report["knee"] is None else f"<p><b>{escape(knee_words(report))}</b></p>"
    shape = table(("", *columns, "mean, 95 %"), rows)
    return f"<h2>{escape(label)}</h2><p>{escape(facts)}</p>{shown}{words}{shape}"


def _run_name(report: Mapping[str, Any], number: int) -> str:
    rate = report["runs"][number]["rate"]
    if report["knee"] is None:
        return f"run {number + 1}"
    return "one at a time" if rate is None else f"{rate:.4g}/s"


def _plots(labels: Sequence[str], reports: Sequence[Mapping[str, Any]]) -> list[str]:
    named = [
        (label if len(report["runs"]) == 1 else f"{label} {_run_name(report, number)}", run)
        for label, report in zip(labels, reports, strict=True)
        if report["verdict"] != "client-bound"
        for number, run in enumerate(report["runs"])
    ][:6]
    plots = []
    for key, title in LATENCIES.items():
        lines = [Line(name, _cumulative(run["quantiles"][key]), number) for number, (name, run) in enumerate(named)]
        plots.append(plot(f"{title}: share of requests", lines, "ms", "share", is_logarithmic=True))
    for key, title in (
        ("tokens_per_s", "Tokens a second"),
        ("in_flight", "Requests under way"),
        ("arrivals_per_s", "Arrivals a second"),
    ):
        lines = [Line(name, _over_time(run["series"], key), number) for number, (name, run) in enumerate(named)]
        plots.append(plot(title, lines, "seconds", ""))
    return plots + _sweeps(labels, reports)


def _cumulative(quantiles: Sequence[float]) -> list[tuple[float, float]]:
    last = len(quantiles) - 1
    return [(value, number / last) for number, value in enumerate(quantiles)]


def _over_time(series: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    return [((number + 0.5) * series["bin_s"], value) for number, value in enumerate(series[key])]


def _sweeps(labels: Sequence[str], reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Over the rates a search has tried: goodput, and the slowest first tokens."""
    lines: dict[str, list[Line]] = {"good_requests_per_s": [], "ttft_p99_ms": []}
    for number, (label, report) in enumerate(zip(labels, reports, strict=True)):
        runs = sorted((run for run in report["runs"] if run["rate"] is not None), key=lambda run: run["rate"])
        if report["knee"] is not None:
            for key, gathered in lines.items():
                points = [(run["rate"], run["headlines"][key]) for run in runs]
                gathered.append(Line(label, points, number, has_dots=True))
    return [
        plot("Goodput by rate", lines["good_requests_per_s"], "requests/s asked", "within targets, /s"),
        plot("TTFT p99 by rate", lines["ttft_p99_ms"], "requests/s asked", "ms"),
    ]


def _cell(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
