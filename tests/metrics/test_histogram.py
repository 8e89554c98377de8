"""Laws of the histogram: percentiles within half a percent, bounded memory, merging equals counting together."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.histogram import Histogram

durations = st.lists(st.floats(2e-6, 1e4), min_size=1, max_size=200)


def filled(values):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(values=durations, share=st.floats(0.01, 1.0))
def test_a_quantile_is_within_half_a_percent_of_a_value_of_that_rank(values, share):
    exact = sorted(values)[min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))]
    assert filled(values).quantile(share) == pytest.approx(exact, rel=0.006)


@given(value=st.floats(0, 1e9), count=st.integers(1, 1000))
def test_a_counted_duration_is_that_many_durations(value, count):
    histogram = Histogram()
    histogram.add(value, count)
    assert histogram.count == count
    assert histogram.sum_s == pytest.approx(value * count)


def test_extremes_and_emptiness():
    assert Histogram().quantile(0.5) == Histogram().mean_s == 0.0
    assert filled([0.0, 0.0]).quantile(0.99) == 0.0
    assert filled([1e300]).quantile(0.5) < 1e300


def test_memory_is_bounded():
    histogram = filled([1.0003**number * 1e-7 for number in range(100_000)])
    assert len(histogram._buckets) < 3000


@given(values=durations, count=st.integers(1, 5))
def test_gaps_told_at_once_are_gaps_told_one_by_one(values, count):
    times = [0.0]
    for value in values:
        times.append(times[-1] + value)
    at_once, one_by_one = Histogram(), Histogram()
    at_once.add_gaps(times, count)
    for earlier, later in pairwise(times):
        one_by_one.add(later - earlier, count)
    assert at_once._buckets == one_by_one._buckets
    assert (at_once.count, at_once.max_s) == (one_by_one.count, one_by_one.max_s)
    assert at_once.sum_s == pytest.approx(one_by_one.sum_s)
