"""A report of `eval report` as one page for people: the sentence, tables, plots. It holds all it needs and fetches nothing."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from penstock.tools.bench.report.page import legend, table, whole_page
from penstock.tools.bench.report.plot import NUM_COLOURS, Line, plot
from penstock.tools.evaluate.summary import WORKLOADS

Report = Mapping[str, Any]
RUNNERS = {"Decoder": "torch, floats", "NativeDecoder": "the native library, packed"}
"""Where the two differ, a speed is not the format's alone."""


def page_of(report: Report) -> str:
    title = f"{report['before']['model']} as {report['format'] or report['after']['model']}"
    parts = [
        f"<p><strong>{escape(report['recommendation'])}.</strong></p>",
        table(("", "before", "after", "after / before"), rows_of(report)),
        _quality(report),
        f'<div class="plots">{_plots(report)}</div>',
        legend(matrices_of(report)),
        _strata(report),
    ]
    return whole_page(title, parts)


def rows_of(report: Report) -> list[tuple[str, ...]]:
    before, after, ratios = report["before"], report["after"], report["ratios"]
    found: list[tuple[str, ...]] = [
        ("size, MB", *(f"{side['bytes'] / 1e6:,.1f}" for side in (before, after)), _ratio(ratios, "bytes")),
        ("bits a weight", *(f"{side['bits_per_weight']:.2f}" for side in (before, after)), ""),
    ]
    speeds = [side["speed"] or {} for side in (before, after)]
    if any(speeds):
        peaks = [f"{speed['peak_bytes'] / 1e6:,.0f}" if speed else "" for speed in speeds]
        found.append(("peak memory, MB", *peaks, _ratio(ratios, "peak_bytes")))
        for name, words in WORKLOADS.items():
            cells = [f"{speed[name]:,.1f}" if speed else "" for speed in speeds]
            found.append((f"{name}, {words}, tokens/s", *cells, _ratio(ratios, name)))
        found.append(("computed by", *(RUNNERS.get(speed.get("runner", ""), "") for speed in speeds), ""))
    if before["perplexity"] is not None and after["perplexity"] is not None:
        cells = [f"{side['perplexity']:.2f}" for side in (before, after)]
        found.append(("perplexity", *cells, f"{after['perplexity'] / before['perplexity']:.3f}"))
    if before["accuracy"] is not None and after["accuracy"] is not None:
        cells = [f"{side['accuracy']:.1%} ({_shares(side['accuracy_interval'])})" for side in (before, after)]
        found.append((f"right of {after['questions']:,} questions", *cells, ""))
    return found


def _shares(interval: Sequence[float]) -> str:
    return " to ".join(f"{100 * each:.0f}" for each in interval) + " %"


def _change(line: Mapping[str, Any]) -> tuple[str, str]:
    """Of perplexity as a share of it, of shares in points, of divergences in nats; with the interval."""
    unit = {"perplexity": " %", "accuracy": " points"}.get(line["measure"])
    numbers = [line["change"], *line["interval"]]
    change, low, high = (f"{each:+.4f}" if unit is None else f"{100 * each:+.2f}" for each in numbers)
    return f"{change}{unit or ' nats'}", f"{low} to {high}{unit or ' nats'}"


def _ratio(ratios: Mapping[str, float], name: str) -> str:
    return f"{ratios[name]:.2f}" if name in ratios else ""


def _quality(report: Report) -> str:
    rows = [(line["measure"], *_change(line), line["verdict"]) for line in report["comparisons"]]
    found = table(("measure", "change", "19 of 20 lie between", "after is"), rows) if rows else ""
    divergence = report["divergence"]
    if divergence:
        quantiles = [(f"{float(name):.1%}", f"{value:.5f}") for name, value in divergence["kl_quantiles"].items()]
        same = f"{divergence['same_top_1']:.1%}"
        found += f"<p>KL divergence {divergence['kl']:.5f} nats a token; the same likeliest token {same}.</p>"
        found += table(("tokens below", "KL"), [*quantiles, ("all", f"{divergence['kl_most']:.4f}")])
    return found


def _plots(report: Report) -> str:
    names = matrices_of(report)
    errors = [
        Line([(each["layer"], each[name]) for each in report["layers"] if name in each], number % NUM_COLOURS, True)
        for number, name in enumerate(names)
    ]
    found = plot("Relative error behind each matrix", errors, "layer", "error") if errors else ""
    divergence = report["divergence"]
    if divergence:
        points = [(float(name), value) for name, value in divergence["kl_quantiles"].items()]
        found += plot("KL divergence by share of tokens", [Line(points, 0, True)], "share of tokens", "nats")
    ratios = [(number, report["ratios"][name]) for number, name in enumerate(WORKLOADS, 1) if name in report["ratios"]]
    if ratios:
        found += plot("Speed after / before, W1 to W3", [Line(ratios, 2, True)], "workload", "times")
    return found


def matrices_of(report: Report) -> list[str]:
    return sorted({name for each in report["layers"] for name in each if name != "layer"})


def _strata(report: Report) -> str:
    before, after = report["strata"]["before"], report["strata"]["after"]
    if not before or not after:
        return ""
    rows = [
        (f"{kind}: {name}", each["questions"], f"{each['accuracy']:.1%}", f"{now['accuracy']:.1%}",
         _shares(now["interval"]))
        for kind, groups in before.items()
        for name, each in groups.items()
        if (now := after.get(kind, {}).get(name))
    ]  # fmt: skip
    return "<h2>Tasks</h2>" + table(("stratum", "questions", "before", "after", "after, 19 of 20"), rows)
