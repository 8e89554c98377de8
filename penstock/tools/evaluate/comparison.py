"""Two reports of `penstock eval` side by side: better, worse, or within chance."""

import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.tools.evaluate.intervals import Estimate, Verdict, compare_shares, judge, ratio_of_sums


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for each measure that both have, B against A. Both must be of the same text or questions."""
    if first.get("file") != second.get("file"):
        raise ConfigError(
            f"the reports are of different files, {first.get('file')} and {second.get('file')}; measure both on one"
        )
    measures = {"windows": _perplexity, "right": _accuracy, "kl": _plain}
    found = [measure(first, second) for part, measure in measures.items() if part in first and part in second]
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
    return _line("perplexity", first, second, ratio, judge(difference, less_is_better=True))


def _accuracy(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    if len(first["right"]) != len(second["right"]):
        raise ConfigError("the reports have different numbers of questions; measure both on the same")
    difference, verdict = compare_shares(list(map(bool, first["right"])), list(map(bool, second["right"])))
    return _line("accuracy", first, second, difference, verdict, 4)


def _plain(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Divergences are compared by their intervals alone: only their sums were kept."""
    (a_low, a_high), (b_low, b_high) = first["kl_interval"], second["kl_interval"]
    difference = Estimate(second["kl"] - first["kl"], b_low - a_high, b_high - a_low)
    return _line("kl", first, second, difference, judge(difference, less_is_better=True))


def _line(
    measure: str,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    change: Estimate,
    verdict: Verdict,
    digits: int = 6,
) -> dict[str, Any]:
    value, low, high = (round(each, digits) for each in change)
    line = {"measure": measure, "a": first[measure], "b": second[measure], "change": value, "interval": [low, high]}
    return line | {"verdict": verdict}
