"""What making a model smaller changed, as one report: sizes, memory, speed, quality, errors by layer, and what to do.

`before` and `after` are what measuring each model gave; a part that was not measured is None. Pure: values in, values out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.tools.evaluate.comparison import compare

VERSION = 1
LOSSLESS, SMALL = 0.01, 0.05
"""Shares of perplexity: up to the first a format is taken without a thought, beyond the second it is advised against."""
WORKLOADS = {"W1": "prefill of 512 tokens", "W2": "one stream", "W3": "32 requests at once"}
Measured = Mapping[str, Any]


def summarize(made: Measured, before: Measured, after: Measured) -> dict[str, Any]:
    """`made` is the model's own `quantization.json`, or what is known of a model that came without one."""
    comparisons = [
        line
        for part in ("text", "tasks")
        if before.get(part) and after.get(part)
        for line in compare(before[part], after[part])
    ]
    divergence = {name: value for name, value in (after.get("text") or {}).items() if name in _DIVERGENCE}
    found = {
        "penstock_report": VERSION,
        "format": made.get("format"),
        "method": made.get("method"),
        "group": made.get("group"),
        "calibration_tokens": made.get("calibration_tokens"),
        "before": _side(before),
        "after": _side(after),
        "ratios": _ratios(before, after),
        "comparisons": comparisons,
        "divergence": divergence or None,
        "strata": {
            side: (each.get("tasks") or {}).get("strata") for side, each in (("before", before), ("after", after))
        },
        "mixture": made.get("mixture"),
        "layers": list(made.get("layers") or ()),
    }
    return found | {"recommendation": recommend(found)}


_DIVERGENCE = ("kl", "kl_interval", "kl_quantiles", "kl_most", "same_top_1", "same_top_1_interval")


def _side(measured: Measured) -> dict[str, Any]:
    text, tasks = measured.get("text") or {}, measured.get("tasks") or {}
    return {
        "model": measured["model"],
        "bytes": measured["bytes"],
        "bits_per_weight": measured["bits_per_weight"],
        "speed": measured.get("speed"),
        "perplexity": text.get("perplexity"),
        "accuracy": tasks.get("accuracy"),
        "accuracy_interval": tasks.get("accuracy_interval"),
        "questions": tasks.get("questions"),
    }


def _ratios(before: Measured, after: Measured) -> dict[str, float]:
    """After over before."""
    found = {"bytes": after["bytes"] / before["bytes"]}
    first, last = before.get("speed") or {}, after.get("speed") or {}
    for name in (*WORKLOADS, "peak_bytes"):
        if first.get(name) and last.get(name):
            found[name] = last[name] / first[name]
    return {name: round(value, 3) for name, value in found.items()}


def recommend(report: Measured) -> str:
    """One sentence: what it costs, what it gives, whether to take it, and which layers were spared or hurt most."""
    ratios = report["ratios"]
    gains = [f"is {1 / ratios['bytes']:.1f} times smaller"]
    if "W2" in ratios:
        runners = {(report[side]["speed"] or {}).get("runner") for side in ("before", "after")}
        gains.append(
            f"runs one stream at {ratios['W2']:.1f} times the speed{' (another runtime)' if len(runners) > 1 else ''}"
        )
    lines = {line["measure"]: line for line in report["comparisons"]}
    name = " ".join(str(report[key]) for key in ("format", "method") if report[key]) or "this model"
    loss = lines.get("perplexity")
    words = f"{name} {' and '.join(gains)}"
    if loss is None:
        return f"{words}; what it costs was not measured: give a text with --text"
    low, high = (100 * each for each in loss["interval"])
    if loss["verdict"] == "within chance":
        words += f", at a perplexity that is the same within chance ({low:+.1f} to {high:+.1f} %)"
    else:
        words += f", at {100 * loss['change']:+.1f} % perplexity ({low:+.1f} to {high:+.1f} %)"
    if "accuracy" in lines:
        words += f" and tasks {lines['accuracy']['verdict']}"
    return f"{words}: {_advice(loss, lines.get('accuracy'))}{_layers(report)}"


def _advice(loss: Measured, tasks: Measured | None) -> str:
    is_worse = tasks is not None and tasks["verdict"] == "worse"
    if loss["verdict"] == "within chance" and loss["interval"][1] > SMALL and not is_worse:
        return "measure on more --tokens before you decide"
    if (loss["verdict"] != "worse" or loss["change"] <= LOSSLESS) and not is_worse:
        return "use it"
    if loss["change"] <= SMALL and not is_worse:
        return "use it where memory or speed is short"
    return "prefer smaller groups, --bits-per-weight with more bits, or 8 bits"


def _layers(report: Measured) -> str:
    mixture = report["mixture"]
    if mixture:
        widest = len(mixture["formats"]) - 1
        kept = sorted(
            {int(name.split(".")[1]) for name, (number, *_) in mixture["matrices"].items() if number == widest}
        )
        if kept:
            format_ = mixture["formats"][widest]
            return (
                f"; layers {_listed(kept)} keep matrices in {format_}, since fewer bits there change predictions most"
            )
    worst = sorted(report["layers"], key=lambda each: -_worst(each))[:3]
    return f"; layers {_listed([each['layer'] for each in worst])} lose most" if worst and _worst(worst[0]) > 0 else ""


def _worst(errors: Mapping[str, Any]) -> float:
    return max((value for name, value in errors.items() if name != "layer" and math.isfinite(value)), default=0.0)


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
