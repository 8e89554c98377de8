"""Laws of virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tools.sim.clock import EventQueue


@given(times=st.lists(st.floats(0, 10), max_size=50))
def test_events_run_in_order_of_time_then_of_posting(times):
    events = EventQueue()
    seen = []
    for number, time in enumerate(times):
        events.post(time, lambda now, number=number: seen.append((now, number)))
    events.run()
    assert seen == sorted((time, number) for number, time in enumerate(times))


def test_actions_may_post_at_the_present_and_later():
    events = EventQueue()
    seen = []

    def act(now):
        seen.append(now)
        if len(seen) < 4:
            events.post(now + len(seen) % 2, act)

    events.post(1.0, act)
    events.run()
    assert seen == [1.0, 2.0, 2.0, 3.0]
    assert events.now == 3.0


@pytest.mark.parametrize("time", [0.5, float("nan"), float("inf"), float("-inf")])
def test_the_past_and_the_unreal_are_refused(time):
    events = EventQueue()
    events.post(1.0, lambda now: events.post(time, lambda now: None))
    with pytest.raises(ValueError, match="cannot post"):
        events.run()
