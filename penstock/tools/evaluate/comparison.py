"""Two reports of `penstock eval` side by side: better, worse, or within chance."""

import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.evaluate.intervals import Estimate, compare_shares, judge, ratio_of_sums


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for each measure that both have, B against A. Both must be of the same text or questions."""
    if first.get("file") != second.get("file"):
        raise ConfigError(
            f"the reports are of different files, {first.get('file')} and {second.get('file')}; measure both on one"
        )
    found = []
    if "windows" in first and "windows" in second:
        found.append(_perplexity(first, second))
    if "right" in first and "right" in second:
        found.append(_accuracy(first, second))
    if "kl" in first and "kl" in second:
        found.append(_plain(first, second))
    if not found:
        raise ConfigError("the reports have no measure in common; write them with penstock eval ... --json")
    return found


def _perplexity(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Of the same windows: what one model loses against the other in each decides."""
    counts, more = ([count for count, _ in report["windows"]] for report in (first, second))
    if counts != more:
        raise ConfigError("the reports have different windows; use the same --tokens, --context and stride")
    lost = [a - b for (_, a), (_, b) in zip(first["windows"], second["windows"])]
    difference = ratio_of_sums(lost, counts)
    ratio = Estimate(*(math.exp(min(each, 50.0)) - 1 for each in difference))
    return {
        "measure": "perplexity",
        "a": first["perplexity"],
        "b": second["perplexity"],
        "change": round(ratio.value, 6),
        "interval": [round(ratio.low, 6), round(ratio.high, 6)],
        "verdict": judge(difference, less_is_better=True),
    }


def _accuracy(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    if len(first["right"]) != len(second["right"]):
        raise ConfigError("the reports have different numbers of questions; measure both on the same")
    difference, verdict = compare_shares(list(map(bool, first["right"])), list(map(bool, second["right"])))
    return {
        "measure": "accuracy",
        "a": first["accuracy"],
        "b": second["accuracy"],
        "change": round(difference.value, 4),
        "interval": [round(difference.low, 4), round(difference.high, 4)],
        "verdict": verdict,
    }


def _plain(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Divergences are compared by their intervals alone: only their sums were kept."""
    (a_low, a_high), (b_low, b_high) = first["kl_interval"], second["kl_interval"]
    difference = Estimate(second["kl"] - first["kl"], b_low - a_high, b_high - a_low)
    return {
        "measure": "kl",
        "a": first["kl"],
        "b": second["kl"],
        "change": round(difference.value, 6),
        "interval": [round(difference.low, 6), round(difference.high, 6)],
        "verdict": judge(difference, less_is_better=True),
    }
