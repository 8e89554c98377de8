"""How sure a measure is: intervals of shares and means, and whether two models differ by more than chance."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from penstock.tools.bench.report.interval import student_95

Verdict = Literal["better", "worse", "within chance"]
NORMAL_95 = 1.959963984540054


class Estimate(NamedTuple):
    """An estimate and where the truth lies in 19 of 20 cases."""

    value: float
    low: float
    high: float


def share(hits: int, trials: int) -> Estimate:
    """Wilson's interval: it holds for few trials and for shares near 0 and 1 too."""
    if trials == 0:
        return Estimate(math.nan, 0.0, 1.0)
    found, z2 = hits / trials, NORMAL_95**2
    middle = (found + z2 / (2 * trials)) / (1 + z2 / trials)
    half = NORMAL_95 / (1 + z2 / trials) * math.sqrt(found * (1 - found) / trials + z2 / (4 * trials**2))
    return Estimate(found, max(0.0, middle - half), min(1.0, middle + half))


def ratio_of_sums(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """A mean over tokens that come in clusters (windows of a text), whose sums and counts these are.

    Tokens of a window are not independent, so windows are what is counted.
    """
    total, number = math.fsum(sums), sum(counts)
    mean = total / number
    clusters = len(sums)
    if clusters < 2:
        return Estimate(mean, -math.inf, math.inf)
    squares = math.fsum((each - mean * count) ** 2 for each, count in zip(sums, counts))
    error = math.sqrt(squares * clusters / (clusters - 1)) / number
    half = student_95(clusters - 1) * error
    return Estimate(mean, mean - half, mean + half)


def judge(difference: Estimate, *, less_is_better: bool) -> Verdict:
    """Of a difference B - A: whether B is better than A."""
    if difference.low <= 0 <= difference.high:
        return "within chance"
    return "better" if (difference.value < 0) == less_is_better else "worse"


def compare_shares(first: Sequence[bool], second: Sequence[bool]) -> tuple[Estimate, Verdict]:
    """Of the same questions: those that only one of two models answers decide (McNemar's exact test)."""
    gained = sum(b and not a for a, b in zip(first, second))
    lost = sum(a and not b for a, b in zip(first, second))
    count, changed = len(first), gained + lost
    value = (gained - lost) / count
    error = math.sqrt(max(changed - (gained - lost) ** 2 / count, 0.0)) / count
    interval = Estimate(value, value - NORMAL_95 * error, value + NORMAL_95 * error)
    if changed == 0 or _two_sided(min(gained, lost), changed) > 0.05:
        return interval, "within chance"
    return interval, "better" if gained > lost else "worse"


def _two_sided(fewer: int, trials: int) -> float:
    """The chance that a fair coin falls so unevenly."""
    tail = float(sum(math.comb(trials, number) for number in range(fewer + 1)) / 2**trials)
    return min(1.0, 2 * tail)
