"""Laws of weather: work takes as long as it does piece by piece, what was measured is what is played, and luck is a seed's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tools.cost.measured.slowdown import (
    MAX_PAUSE_S,
    MAX_STRETCHES,
    MIN_SLOWDOWN_S,
    STRETCH,
    Slowdown,
    SlowdownTrace,
    slowdowns_of,
)

SECONDS = st.floats(0.001, 5.0)
SLOWDOWNS = st.lists(st.builds(Slowdown, st.floats(0.01, 1.0), st.floats(0.2, 8.0)), min_size=1, max_size=12)
SEEDS = st.integers(0, 99).map(str)
STEPS = st.lists(st.tuples(st.floats(1e-4, 0.05), st.floats(1e-4, 0.05)), min_size=1, max_size=200)


@given(SLOWDOWNS, SEEDS, SECONDS, SECONDS, SECONDS)
def test_work_takes_as_long_as_its_parts_in_a_row(slowdowns, seed, start_s, first_s, second_s):
    slowdown_trace = SlowdownTrace(slowdowns, seed)
    one_s = slowdown_trace.lasting(start_s, first_s)
    both_s = one_s + slowdown_trace.lasting(start_s + one_s, second_s)
    assert slowdown_trace.lasting(start_s, first_s + second_s) == pytest.approx(both_s, rel=1e-6)


@given(SLOWDOWNS, SEEDS, SECONDS)
def test_a_round_of_all_spells_takes_their_seconds_from_any_moment_on(slowdowns, seed, start_s):
    usual_s = sum(slowdown.seconds / slowdown.factor for slowdown in slowdowns)
    assert SlowdownTrace(slowdowns, seed).lasting(start_s, usual_s) == pytest.approx(
        sum(one.seconds for one in slowdowns), rel=1e-6
    )


@given(SLOWDOWNS, SEEDS, SECONDS, SECONDS)
def test_no_work_is_slower_than_in_the_worst_spell_or_faster_than_in_the_best(slowdowns, seed, start_s, usual_s):
    factors = [slowdown.factor for slowdown in slowdowns]
    lasted_s = SlowdownTrace(slowdowns, seed).lasting(start_s, usual_s)
    assert min(factors) * usual_s * (1.0 - 1e-9) <= lasted_s <= max(factors) * usual_s * (1.0 + 1e-9)


def test_the_same_seed_is_the_same_luck_and_another_another():
    slowdowns = [Slowdown(0.1, 1.0), Slowdown(0.1, 3.0)]
    lasted = [[SlowdownTrace(slowdowns, seed).lasting(0.0, 0.05) for _ in range(2)] for seed in ("a", "b", "c")]
    assert all(one == other for one, other in lasted)
    assert len({one for one, _ in lasted}) > 1


@given(STEPS)
def test_what_steps_took_and_usually_take_is_kept(steps):
    seconds, usual = zip(*steps, (MIN_SLOWDOWN_S, 0.005))  # the last one fills a spell
    slowdowns = slowdowns_of(seconds, usual)
    assert all(slowdown.seconds >= MIN_SLOWDOWN_S - 1e-5 for slowdown in slowdowns)
    assert sum(slowdown.seconds for slowdown in slowdowns) == pytest.approx(sum(seconds), abs=1e-5 * len(slowdowns))
    assert sum(slowdown.seconds / slowdown.factor for slowdown in slowdowns) == pytest.approx(sum(usual), rel=0.02)


def test_a_machine_that_was_suspended_meanwhile_is_no_weather():
    (slowdown,) = slowdowns_of([30_000.0], [0.1])
    assert slowdown.seconds == 0.1 + MAX_PAUSE_S
    assert slowdown.factor == pytest.approx(11.0)


def test_of_a_long_measurement_stretches_from_its_whole_length_are_kept():
    num_steps = 5 * MAX_STRETCHES * STRETCH
    slowdowns = slowdowns_of([0.02] * num_steps, [0.02 / (1.0 + number / num_steps) for number in range(num_steps)])
    assert len(slowdowns) == MAX_STRETCHES * STRETCH
    factors = [slowdown.factor for slowdown in slowdowns]
    assert factors == sorted(factors), "in their order"
    assert factors[0] == pytest.approx(1.0, abs=0.01)
    assert factors[-1] == pytest.approx(2.0, abs=0.02)
