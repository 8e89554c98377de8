"""Intervals cover the truth as often as they say, and what is within chance is called so."""

import math
import random

import pytest

from penstock.tools.evaluate.comparison import compare
from penstock.tools.evaluate.intervals import compare_shares, ratio_of_sums, share

pytestmark = pytest.mark.plain


@pytest.mark.parametrize("truth", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("trials", [40, 281])
def test_the_interval_of_a_share_covers_the_truth(truth: float, trials: int) -> None:
    draw = random.Random(f"{truth} {trials}")
    covered = 0
    for _ in range(1000):
        found = share(sum(draw.random() < truth for _ in range(trials)), trials)
        covered += found.low <= truth <= found.high
    assert 0.925 <= covered / 1000 <= 0.985


@pytest.mark.parametrize("clusters", [8, 32])
def test_the_interval_of_a_mean_covers_the_truth_though_tokens_of_a_window_are_alike(clusters: int) -> None:
    draw = random.Random(clusters)
    covered = 0
    for _ in range(1000):
        sums, counts = [], []
        for _ in range(clusters):
            shift, count = draw.gauss(0, 1), draw.randint(20, 30)
            sums.append(sum(2.0 + shift + draw.gauss(0, 2) for _ in range(count)))
            counts.append(count)
        found = ratio_of_sums(sums, counts)
        covered += found.low <= 2.0 <= found.high
    assert 0.92 <= covered / 1000 <= 0.985


def test_equal_models_are_seldom_called_different_and_a_better_one_is_found() -> None:
    draw = random.Random(5)
    called = 0
    for _ in range(500):
        first = [draw.random() < 0.6 for _ in range(200)]
        second = [not each if draw.random() < 0.1 else each for each in first]
        flips = [draw.random() < 0.5 for _ in first]  # neither side is favoured
        a = [x if flip else y for x, y, flip in zip(first, second, flips)]
        b = [y if flip else x for x, y, flip in zip(first, second, flips)]
        called += compare_shares(a, b)[1] != "within chance"
    assert called / 500 < 0.06
    assert compare_shares([False] * 30 + [True] * 70, [True] * 90 + [False] * 10)[1] == "better"
    assert compare_shares([True] * 100, [True] * 80 + [False] * 20)[1] == "worse"


def test_reports_of_the_same_windows_are_compared_pair_by_pair() -> None:
    draw = random.Random(1)
    base = [[100, -300.0 + draw.gauss(0, 50)] for _ in range(16)]
    worse = [[count, logprob - 2.0 + draw.gauss(0, 0.5)] for count, logprob in base]
    report = {"file": "t", "perplexity": 20.0, "windows": base}
    (found,) = compare(report, {"file": "t", "perplexity": 20.4, "windows": worse})
    assert found["verdict"] == "worse"
    assert found["change"] == pytest.approx(math.exp(0.02) - 1, abs=0.003)
    (same,) = compare(report, report)
    assert same["verdict"] == "within chance"
