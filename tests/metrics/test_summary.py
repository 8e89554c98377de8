"""Laws of summaries: percentiles as numpy's, failures apart, goodput never above throughput."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.metrics.histogram import Histogram
from penstock.metrics.summary import Slo, percentiles, summarize
from penstock.metrics.timeline import Timeline
from penstock.runtime.core.batch import Delta, Finish, FinishReason


def ended(ttft_s, tpot_s, num_tokens, reason=FinishReason.LENGTH, arrival_s=0.0):
    timeline = Timeline(arrival_s, num_prompt=10)
    for number in range(num_tokens):
        finish = Finish(reason) if number == num_tokens - 1 else None
        timeline.observe(Delta(1, 0, (1,), finish), arrival_s + ttft_s + number * tpot_s)
    return timeline


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=100))
def test_percentiles_are_those_of_numpy(values):
    found = percentiles(values)
    expected = numpy.percentile(values, [50, 90, 95, 99])
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(list(expected))
    assert (found.count, found.max) == (len(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))


def test_no_values_give_zeros():
    assert percentiles([]).count == 0
    summary = summarize([], 0.0)
    assert summary.num_requests == summary.requests_per_s == summary.good_fraction == 0


def test_rates_and_latencies():
    timelines = [ended(0.1, 0.01, 11), ended(0.3, 0.03, 21), ended(9.0, 0.5, 5, FinishReason.CANCELLED)]
    gaps = Histogram()
    gaps.add(0.01)
    summary = summarize(timelines, 10.0, gaps=gaps)
    assert summary.outcomes["length"] == summary.num_successes == 2
    assert summary.outcomes["cancelled"] == 1
    assert summary.num_requests == 3
    assert summary.ttft.max == pytest.approx(0.3)
    assert summary.tpot.p50 == pytest.approx(0.02)
    assert summary.e2e.max == pytest.approx(0.9)
    assert summary.itl.count == 1
    assert summary.requests_per_s == pytest.approx(0.2)
    assert summary.output_tokens_per_s == pytest.approx(3.7)
    assert summary.num_prompt_tokens == 30


def test_requests_under_way_are_in_no_count():
    assert summarize([Timeline(0.0, 5)], 1.0).num_requests == 0


def test_goodput_counts_those_that_met_every_target():
    timelines = [ended(0.1, 0.01, 10), ended(0.9, 0.01, 10), ended(0.1, 0.2, 10), ended(0.1, 0.0, 1)]
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    summary = summarize(timelines, 1.0, slo)
    assert summary.good_requests_per_s == 2
    assert summary.good_tokens_per_s == 11
    assert summary.good_fraction == 0.5
    assert summarize(timelines, 1.0, Slo(e2e_s=0.2)).good_requests_per_s == 2
    assert not slo.is_met(ended(0.1, 0.01, 10, FinishReason.ERROR))
    assert not slo.is_met(Timeline(0.0, 1))


times = st.floats(0.001, 10)


@given(
    shapes=st.lists(st.tuples(times, times, st.integers(1, 5), st.sampled_from(FinishReason)), max_size=20), slo=times
)
def test_goodput_never_exceeds_throughput(shapes, slo):
    timelines = [ended(*shape) for shape in shapes]
    summary = summarize(timelines, 5.0, Slo(ttft_s=slo, tpot_s=slo))
    assert summary.good_requests_per_s <= summary.requests_per_s
    assert summary.good_tokens_per_s <= summary.output_tokens_per_s
    assert summary.num_requests == len(timelines)
    open_slo = summarize(timelines, 5.0)
    assert open_slo.good_requests_per_s == open_slo.requests_per_s


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_targets_are_refused(value):
    with pytest.raises(ConfigError, match="SLO"):
        Slo(ttft_s=value)
