"""Laws of intervals: they cover the truth as often as they say, and differences are called only when chance is excluded."""

from random import Random

import pytest

from penstock.tools.bench.report.interval import difference, interval


def test_known_intervals():
    found = interval([10.0, 12.0, 14.0])
    assert (found.mean, found.count) == (12.0, 3)
    assert found.half_width == pytest.approx(4.303 * 2.0 / 3**0.5)
    assert interval([7.0]).half_width is None
    assert interval([]).mean == 0.0
    change = difference([1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 14.0])
    assert change.mean == 10.0
    assert change.half_width == pytest.approx(2.447 * (2 * (5 / 3) / 4) ** 0.5)
    assert change.is_clear
    assert not difference([1.0], [9.0, 9.1]).is_clear


@pytest.mark.parametrize("count", [2, 3, 5, 12, 18, 25, 45, 200])
def test_intervals_cover_the_truth_about_nineteen_times_in_twenty(count):
    random = Random(count)
    covered = false_alarms = 0
    for _ in range(1000):
        first, second = ([random.gauss(5.0, 2.0) for _ in range(count)] for _ in range(2))
        found = interval(first)
        covered += abs(found.mean - 5.0) <= found.half_width
        false_alarms += difference(first, second).is_clear
    assert 925 <= covered <= 980
    assert false_alarms <= 75


def test_equal_runs_do_not_differ():
    assert not difference([3.0, 3.0], [3.0, 3.0]).is_clear
    assert difference([3.0, 3.0], [4.0, 4.0]).is_clear
