"""Laws of timelines: the definitions, exactly one outcome, bounded size."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.timeline import Outcome, Timeline, Timelines
from penstock.runtime.core.batch import Delta, Fault, Finish, FinishReason, PrefixHit

STOP = Finish(FinishReason.STOP)


def feed(timeline, steps):
    """steps: (time, number of tokens)"""
    last = len(steps) - 1
    return [
        timeline.observe(Delta(1, 0, (7,) * count, STOP if number == last else None), now)
        for number, (now, count) in enumerate(steps)
    ]


@given(
    arrival=st.floats(0, 100),
    gaps=st.lists(st.floats(0, 10), min_size=1, max_size=30),
    counts=st.lists(st.integers(1, 4), min_size=30, max_size=30),
)
def test_times_are_as_defined(arrival, gaps, counts):
    times = [arrival + sum(gaps[: number + 1]) for number in range(len(gaps))]
    steps = list(zip(times, counts))
    timeline = Timeline(arrival, num_prompt=5, keep_times=True)
    observed = feed(timeline, steps)
    num_tokens = sum(count for _, count in steps)
    assert timeline.ttft_s == times[0] - arrival
    assert timeline.e2e_s == times[-1] - arrival
    if num_tokens > 1:
        assert timeline.tpot_s == pytest.approx((timeline.e2e_s - timeline.ttft_s) / (num_tokens - 1), abs=1e-12)
    else:
        assert timeline.tpot_s is None
    assert observed == [None, *(later - earlier for earlier, later in pairwise(times))]
    assert timeline.token_times == [time for time, count in steps for _ in range(count)]
    assert timeline.num_tokens == num_tokens
    assert timeline.is_over
    assert timeline.end_s == times[-1]


def test_a_timeline_does_not_grow_with_its_tokens():
    timeline = Timeline(0.0, 1)
    feed(timeline, [(0.1 * number, 1) for number in range(1000)])
    assert timeline.token_times is None


def test_nothing_but_an_end_gives_no_times():
    timeline = Timeline(1.0, 3)
    timeline.observe(Delta(1, 0, (), Finish(FinishReason.CANCELLED)), 4.0)
    assert (timeline.ttft_s, timeline.tpot_s, timeline.e2e_s) == (None, None, None)
    assert (timeline.outcome, timeline.end_s) == (Outcome.CANCELLED, 4.0)


def test_choices_share_arrival_and_count_tokens_each():
    timeline = Timeline(0.0, 3, num_choices=2)
    timeline.observe(Delta(1, 0, (1,), prefix=PrefixHit(16, "")), 1.0)
    timeline.observe(Delta(1, 1, (1,), prefix=PrefixHit(2, "")), 2.0)
    timeline.observe(Delta(1, 0, (1,), STOP), 3.0)
    assert not timeline.is_over
    timeline.observe(Delta(1, 1, (1,), Finish(FinishReason.LENGTH)), 4.0)
    assert timeline.is_over
    assert timeline.num_cached == 16
    assert (timeline.ttft_s, timeline.e2e_s, timeline.tpot_s) == (1.0, 4.0, 3.0)
    assert timeline.outcome is Outcome.LENGTH


@pytest.mark.parametrize(
    ("finish", "outcome"),
    [
        (Finish(FinishReason.STOP), Outcome.STOP),
        (Finish(FinishReason.LENGTH), Outcome.LENGTH),
        (Finish(FinishReason.CANCELLED), Outcome.CANCELLED),
        (Finish(FinishReason.ERROR, "", Fault.DEADLINE), Outcome.DEADLINE),
        (Finish(FinishReason.ERROR, "", Fault.ENGINE), Outcome.ERROR),
        (Finish(FinishReason.ERROR, "", Fault.REQUEST), Outcome.REFUSED),
        (Finish(FinishReason.ERROR, "", Fault.CAPACITY), Outcome.REFUSED),
        (Finish(FinishReason.ERROR), Outcome.ERROR),
    ],
)
def test_every_finish_is_an_outcome(finish, outcome):
    timeline = Timeline(0.0, 1)
    timeline.observe(Delta(1, 0, (1,), finish), 1.0)
    assert timeline.outcome is outcome


def test_the_worst_choice_decides_the_outcome():
    timeline = Timeline(0.0, 1, num_choices=2)
    timeline.observe(Delta(1, 0, (1,), Finish(FinishReason.ERROR)), 1.0)
    timeline.observe(Delta(1, 1, (1,), STOP), 2.0)
    assert timeline.outcome is Outcome.ERROR


def test_many_timelines_are_open_then_ended_once():
    timelines = Timelines()
    for number in range(3):
        timelines.arrive(number, float(number), 10)
    timelines.refuse(2, 2.0)
    timelines.observe([Delta(0, 0, (1,)), Delta(1, 0, (1,))], 3.0)
    timelines.observe([Delta(0, 0, (1,), STOP)], 4.0)
    timelines.observe([Delta(1, 0, (1,), STOP)], 6.0)
    assert timelines.num_open == 0
    assert [timeline.outcome for timeline in timelines.ended] == [Outcome.REFUSED, Outcome.STOP, Outcome.STOP]
    assert timelines.gaps.count == 2
    assert timelines.gaps.sum_s == 4.0
    with pytest.raises(KeyError):
        timelines.observe([Delta(0, 0, (1,))], 7.0)


@given(
    earlier=st.booleans(),
    gaps=st.lists(st.floats(2e-6, 10), min_size=1, max_size=20),
    ends=st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_a_run_told_at_once_equals_its_steps_told_one_by_one(earlier, gaps, ends):
    """One delta a request with a token a step, against a delta a request a step."""
    times = [1.0 + sum(gaps[: number + 1]) for number in range(len(gaps))]
    whole, stepwise = Timelines(keep_times=True), Timelines(keep_times=True)
    for timelines in (whole, stepwise):
        for number in range(len(ends)):
            timelines.arrive(number, 0.0, 5)
        if earlier:
            timelines.observe([Delta(number, 0, (1,)) for number in range(len(ends))], 0.5)
    for n, end in enumerate(ends):
        whole.observe_run(Delta(n, 0, (1,) * len(times), STOP if end else None), times)
    whole.gaps.add_gaps(times, len(ends))
    for step, now in enumerate(times):
        is_last = step == len(times) - 1
        stepwise.observe([Delta(n, 0, (1,), STOP if end and is_last else None) for n, end in enumerate(ends)], now)
    assert whole.num_open == stepwise.num_open
    for one, other in zip(whole.ended, stepwise.ended, strict=True):
        assert all(getattr(one, name) == getattr(other, name) for name in Timeline.__slots__)
    assert whole.gaps.count == stepwise.gaps.count
    assert whole.gaps.quantile(0.5) == stepwise.gaps.quantile(0.5)
    assert whole.gaps.sum_s == pytest.approx(stepwise.gaps.sum_s)
