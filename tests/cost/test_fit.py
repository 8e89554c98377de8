"""Laws of the fit: the best that is not negative, and outliers do not bend it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tools.cost.measured.fit import CostRamp, column, errors_of, fit, held_out, non_negative, ramps_of


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 40))
def test_no_step_within_bounds_makes_it_better(seed, num_columns, num_rows):
    """The conditions of Karush, Kuhn and Tucker, which only the optimum meets."""
    numbers = np.random.default_rng(seed)
    matrix, target = numbers.normal(size=(num_rows, num_columns)), numbers.normal(size=num_rows)
    found = non_negative(matrix, target)
    slope = matrix.T @ (target - matrix @ found)
    assert (found >= 0.0).all()
    assert (slope <= 1e-6).all(), "some coefficient should be larger"
    assert np.abs(slope[found > 0.0]).max(initial=0.0) <= 1e-6, "some coefficient should be smaller"


def test_outliers_do_not_bend_it():
    numbers = np.random.default_rng(5)
    matrix = np.stack([np.ones(400), numbers.uniform(0, 100, 400), numbers.uniform(0, 5000, 400)], axis=1)
    truth = np.array([2e-3, 1e-4, 3e-6])
    seconds = matrix @ truth * numbers.normal(1.0, 0.01, 400)
    seconds[::10] *= 6.0
    assert fit(matrix, seconds, np.ones(400)) == pytest.approx(truth, rel=0.05)


def test_a_column_that_explains_nothing_gets_nothing():
    numbers = np.random.default_rng(6)
    matrix = np.stack([numbers.uniform(1, 9, 50), numbers.uniform(1, 9, 50)], axis=1)
    seconds = 3.0 * matrix[:, 0] - 0.05 * matrix[:, 1]
    assert fit(matrix, seconds, np.ones(50))[1] == 0.0


@given(st.lists(st.floats(0, 1e4), min_size=2, max_size=30), st.floats(0, 1e4))
def test_ramps_of_equal_slope_are_one_line(values, probe):
    measured = np.array(values)
    ramps = ramps_of("x", (1, 8, 64, 512), measured)
    if measured.max() == 0.0:
        assert ramps == []
        return
    total = sum(column(ramp, np.array([probe]))[0] for ramp in ramps)
    assert total == pytest.approx(probe)
    assert ramps[-1].width == np.inf, "beyond the last knee it goes on rising"
    for ramp in ramps:
        assert (measured > ramp.low).any(), "every stretch has been measured"


def test_a_ramp_starts_and_ends_where_it_says():
    assert column(CostRamp("x", 4.0, 6.0), np.array([0.0, 4.0, 7.0, 10.0, 99.0])).tolist() == [0, 0, 3, 6, 6]


def test_held_out_rows_are_predicted_by_the_others():
    matrix = np.arange(1.0, 21.0)[:, None]
    seconds = 2.0 * matrix[:, 0]
    seconds[3] = 1e6
    predicted = held_out(matrix, seconds, np.ones(20))
    assert predicted == pytest.approx(2.0 * matrix[:, 0])


def test_errors_weigh_by_weight():
    errors = errors_of(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([99.0, 1.0]))
    assert (errors.num_cells, errors.median, errors.p95) == (2, 0.0, 0.0)
    assert errors.bias == pytest.approx(0.01)
