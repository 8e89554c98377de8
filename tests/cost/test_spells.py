"""Laws of spells: a steady machine has none, a slow one shows in the steps around, and no step tells of itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cost.spells import MAX_TIMES_OFF, pace, spells

SECONDS = st.lists(st.floats(1e-4, 0.5), min_size=2, max_size=30).map(np.array)


def starts_of(seconds):
    return [0.0, *np.cumsum(seconds)[:-1].tolist()]


@given(SECONDS, st.floats(0.5, 2.0))
def test_all_steps_slower_by_a_factor_are_that_pace(usual, factor):
    assert pace(factor * usual, usual) == pytest.approx(factor)


def test_an_accident_is_no_pace():
    usual = np.full(100, 0.01)
    seconds = 1.2 * usual
    seconds[::10] *= 20.0
    assert pace(seconds, usual) == pytest.approx(1.2)
    assert pace(20.0 * usual, usual) == 1.0


@given(SECONDS)
def test_a_steady_machine_has_no_spells(usual):
    assert spells(starts_of(usual), usual, usual) == pytest.approx(np.ones(len(usual)))


@given(SECONDS, st.data(), st.floats(0.01, 100.0))
def test_what_a_step_took_says_nothing_of_the_spell_it_was_in(usual, data, factor):
    number = data.draw(st.integers(0, len(usual) - 1))
    seconds = usual.copy()
    seconds[number] *= factor
    found = spells(starts_of(usual), seconds, usual)
    assert found[number] == pytest.approx(1.0)
    assert (found <= MAX_TIMES_OFF + 1e-9).all()
    assert (found >= 1.0 / MAX_TIMES_OFF - 1e-9).all()


def test_a_slow_half_minute_is_found_and_another_log_is_not_mixed_with_it():
    usual = np.full(6000, 0.005)
    slow = np.arange(6000) // 2000 == 1
    seconds = np.where(slow, 1.5, 1.0) * usual
    found = spells(starts_of(seconds), seconds, usual)
    assert found[2400:3600] == pytest.approx(1.5, rel=0.02)
    assert found[:1200] == pytest.approx(1.0, rel=0.02)
    apart = [*starts_of(seconds)[:2000], *starts_of(seconds[2000:])]
    assert spells(apart, seconds, usual)[:2000] == pytest.approx(1.0), "the clock went back: nothing is known of before"
