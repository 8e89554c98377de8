"""Laws of caches that cool: what is lost is a share, a pause loses and a reading wins back, and a row of steps is its steps."""

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.tools.cost.measured.warmth import Cooling, Warmth

SECONDS = st.floats(0.0, 10.0)
COOLINGS = st.builds(Cooling, st.floats(0.001, 1.0), st.floats(0.0, 1.0))
ROWS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20)


@given(COOLINGS, st.floats(0.0, 1.0), SECONDS, SECONDS)
def test_what_is_lost_is_a_share_that_grows_with_the_pause(cooling, lost, pause, longer):
    once = cooling.lost(lost, pause)
    assert lost - 1e-12 <= once <= 1.0
    assert cooling.lost(lost, pause + longer) >= once - 1e-12
    assert math.isclose(cooling.lost(once, longer), cooling.lost(lost, pause + longer), abs_tol=1e-9)
    assert cooling.lost(lost, math.inf) == 1.0


@given(COOLINGS, st.lists(SECONDS, min_size=1, max_size=20))
def test_along_a_row_of_readings_nothing_is_lost_that_was_just_read_but_what_reading_leaves(cooling, pauses):
    each = cooling.along(pauses)
    assert each[0] == 1.0, "nothing was read before"
    for lost, pause, after in zip(each, pauses[1:], each[1:]):
        assert after == cooling.lost(lost * cooling.lost_fraction, pause)


@given(COOLINGS, ROWS, st.data(), st.floats(0.0, 5.0))
def test_steps_foretold_together_and_cut_are_those_foretold_singly(cooling, rows, data, rest_s):
    num_steps = data.draw(st.integers(1, len(rows)))
    durations, cold = zip(*rows)
    together, singly = Warmth(cooling), Warmth(cooling)
    ends, start_s = [], 1.0
    for duration_s in together.predict(start_s, durations, cold)[:num_steps]:
        start_s += duration_s
        ends.append(start_s)
    together.take(num_steps)
    start_s = 1.0
    for number in range(num_steps):
        (duration_s,) = singly.predict(start_s, [durations[number]], [cold[number]])
        singly.take(1)
        start_s += duration_s
        assert start_s == ends[number]
    assert together.predict(start_s + rest_s, [1.0], [1.0]) == singly.predict(start_s + rest_s, [1.0], [1.0])


@given(COOLINGS, ROWS)
def test_a_step_takes_no_less_than_warm_and_no_more_than_cold(cooling, rows):
    durations, cold = zip(*rows)
    for longer, duration_s, cold_s in zip(Warmth(cooling).predict(0.0, durations, cold), durations, cold):
        assert duration_s <= longer <= duration_s + cold_s
