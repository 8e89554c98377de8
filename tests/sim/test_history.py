"""Laws of histories: exact averages, curves of bounded length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.core.scheduler import SchedulerLoad
from penstock.tools.sim.replica.history import MAX_SAMPLES, History


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 5), st.integers(0, 9), st.integers(0, 9), st.floats(0, 1)), min_size=1)
)
def test_averages_weigh_every_moment(steps):
    history = History()
    now = 0.0
    areas = [0.0, 0.0, 0.0]
    for duration, running, waiting, usage in steps:
        history.add(SchedulerLoad(running, waiting, 0, usage, 0), now)
        now += duration
        areas = [area + duration * value for area, value in zip(areas, (running, waiting, usage))]
    history.add(SchedulerLoad(0, 0, 0, 0.0, 0), now)
    assert history.means(now) == pytest.approx([area / now for area in areas])
    assert history.max_waiting == max(waiting for _, _, waiting, _ in steps)
    assert history.max_kv_usage_fraction == max(usage for _, _, _, usage in steps)


def test_the_curve_stays_short_and_spans_the_run():
    history = History()
    for number in range(50_000):
        history.add(SchedulerLoad(number, 0, 0, 0.0, 0), number * 0.01)
    times = [sample.time_s for sample in history.samples]
    assert MAX_SAMPLES // 4 < len(times) <= MAX_SAMPLES
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] > 490.0


def test_no_time_has_no_averages():
    assert History().means(0.0) == (0.0, 0.0, 0.0)
