"""A benchmark as one page for people: doubts, tables, plots. It holds all it needs and fetches nothing."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from penstock.tools.bench.report.plot import NUM_COLOURS, Line, plot
from penstock.tools.bench.report.report import HEADLINES, facts_of, figure, headline, knee_words

STYLE = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def page_of(reports: Sequence[Mapping[str, Any]], names: Sequence[str] = (), extra: str = "") -> str:
    """One report, or several laid over each other under their names. `extra` is HTML put above the plots."""
    labels = list(names) or [str(report["target"]["model"]) for report in reports]
    title = " and ".join(labels)
    sections = [
        (f"<h2>{escape(label)}</h2>" if len(labels) > 1 else "") + _section(report)
        for label, report in zip(labels, reports, strict=True)
    ]
    words = f"<h2>What the words mean</h2>{word_table(list(reports[0]['formulas'].items()))}"
    return whole_page(title, [extra, *sections, *_plots(labels, reports), words])


def whole_page(title: str, parts: Sequence[str]) -> str:
    head = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>penstock: {escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    return "\n".join([*head, *parts, "</body></html>"])


def legend(names: Sequence[str]) -> str:
    items = (
        f'<li><span class="c{number % NUM_COLOURS}"></span>{escape(name)}</li>' for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>' if names else ""


def flag_list(flags: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(f'<li class="{escape(flag["level"])}">{escape(flag["text"])}</li>' for flag in flags)
    return f"<ul>{items}</ul>" if items else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def word_table(rows: Sequence[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in rows if text)
    return f'<table class="words">{body}</table>'


def _section(report: Mapping[str, Any]) -> str:
    client = report["client"]
    facts = [*facts_of(report), ("measured", f"{client['ended']}, from {client['system']}")]
    shown = f"{word_table(facts)}{flag_list(report['flags'])}"
    if report["verdict"] == "client-bound" and report["knee"] is None:
        return f"{shown}<p>No figures: they would be the client's own.</p>"
    runs = _in_order(report)
    rows: list[Sequence[object]] = []
    if report["knee"] is not None:
        shown += f"<p><b>{escape(knee_words(report))}</b></p>"
        trials = [trial for trial in report["knee"]["trials"] if not trial["is_alone"]]
        met = {trial["rate"]: trial.get("fault") or ("yes" if trial["is_met"] else "no") for trial in trials}
        rows.append(("targets met", *(met.get(run["rate"], "") for _, run in runs)))
    halves = [report["headlines"][name]["half_width"] for name in HEADLINES if report["headlines"]]
    has_intervals = any(half is not None for half in halves)
    for name, (words, _) in HEADLINES.items():
        cells = [headline(run, name) for _, run in runs]
        row: list[object] = [words, *("" if cell is None else cell for cell in cells)]
        if has_intervals and None not in cells:
            found = report["headlines"][name]
            row.append(f"{figure(found['mean'])} ± {figure(found['half_width'])}")
        rows.append(row)
    return shown + table(("", *(name for name, _ in runs), *(["mean, 95 %"] if has_intervals else [])), rows)


def _in_order(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Runs by name: repeats as they were made, those of a search by their rate."""
    runs = report["runs"]
    if report["knee"] is None:
        return [(f"run {number}", run) for number, run in enumerate(runs, 1)]
    ordered = sorted(runs, key=lambda run: run["rate"] or 0.0)
    return [("one at a time" if run["rate"] is None else f"{run['rate']:.4g}/s", run) for run in ordered]


def _around_knee(report: Mapping[str, Any], count: int) -> list[tuple[str, Mapping[str, Any]]]:
    """So many runs: of a search, those nearest to where targets begin to be missed."""
    runs, knee = _in_order(report), report["knee"]
    if knee is None or len(runs) <= count:
        return runs[:count]
    centre = next((number for number, (_, run) in enumerate(runs) if run["rate"] == knee["rate"]), 0)
    start = min(max(centre - (count - 1) // 2, 0), len(runs) - count)
    return runs[start : start + count]


def _plots(labels: Sequence[str], reports: Sequence[Mapping[str, Any]]) -> list[str]:
    trusted = [
        (label, report) for label, report in zip(labels, reports, strict=True) if report["verdict"] != "client-bound"
    ]
    if not trusted:
        return []
    count = NUM_COLOURS // len(trusted)
    named = [
        (" ".join([label] * (len(labels) > 1) + [name] * (len(report["runs"]) > 1)) or label, run)
        for label, report in trusted
        for name, run in _around_knee(report, count)
    ]
    # Over time, only what was and what was not carried: more lines would hide each other.
    bounds = {report["knee"][name] for _, report in trusted if report["knee"] for name in ("rate", "beyond")} - {None}
    plots = []
    for key, title in LATENCIES.items():
        lines = [Line(_cumulative(run["quantiles"][key]), number) for number, (_, run) in enumerate(named)]
        plots.append(plot(f"{title}: share of requests", lines, "ms", "share", is_logarithmic=True))
    for key, title in (
        ("tokens_per_s", "Tokens a second"),
        ("in_flight", "Requests under way"),
        ("arrivals_per_s", "Arrivals a second"),
    ):
        lines = [
            Line(_over_time(run["series"], key), number)
            for number, (_, run) in enumerate(named)
            if run["rate"] in bounds or not bounds
        ]
        plots.append(plot(title, lines, "seconds", ""))
    found = [f'<div class="plots">{"".join(plots)}</div>']
    if len(named) > 1:
        found.insert(0, legend([name for name, _ in named]))
    return [*_sweeps(reports), *found]


def _cumulative(quantiles: Sequence[float]) -> list[tuple[float, float]]:
    last = len(quantiles) - 1
    return [(value, number / last) for number, value in enumerate(quantiles)]


def _over_time(series: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    return [((number + 0.5) * series["bin_s"], value) for number, value in enumerate(series[key])]


def _sweeps(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Over the rates a search has tried: goodput, and the slowest first tokens."""
    lines: dict[str, list[Line]] = {"good_requests_per_s": [], "ttft_p99_ms": []}
    for number, report in enumerate(reports):
        runs = sorted((run for run in report["runs"] if run["rate"] is not None), key=lambda run: run["rate"])
        if report["knee"] is not None:
            for key, gathered in lines.items():
                points = [(run["rate"], value) for run in runs if (value := headline(run, key)) is not None]
                gathered.append(Line(points, number, has_dots=True))
    goodput = plot("Goodput by rate", lines["good_requests_per_s"], "requests/s asked", "within targets, /s")
    late = plot("TTFT p99 by rate", lines["ttft_p99_ms"], "requests/s asked", "ms")
    return [f'<div class="plots">{goodput}{late}</div>'] if goodput else []


def _cell(value: object) -> str:
    return figure(value) if isinstance(value, float) else str(value)
