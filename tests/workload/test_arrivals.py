"""Laws of arrival processes: seeded, ordered, of the asked rate and burstiness."""

from random import Random
from statistics import mean, stdev

import pytest

from penstock.errors import ConfigError
from penstock.tools.workload.arrivals import AtOnce, Constant, Gamma, Poisson, RateRamp

PROCESSES = [Constant(8.0), Poisson(8.0), Gamma(8.0, 2.0), Gamma(8.0, 0.5)]


def gaps_of(process, count=20_000):
    times = process.times(count, Random(1))
    return [later - earlier for earlier, later in zip([0.0, *times], times)]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_the_rate_is_the_asked_one_and_times_never_fall(process):
    gaps = gaps_of(process)
    assert min(gaps) >= 0.0
    assert mean(gaps) == pytest.approx(1 / 8.0, rel=0.05)


@pytest.mark.parametrize(("process", "variation"), [*zip(PROCESSES, [0.0, 1.0, 2.0, 0.5])], ids=str)
def test_burstiness_is_the_asked_one(process, variation):
    gaps = gaps_of(process)
    assert stdev(gaps) / mean(gaps) == pytest.approx(variation, abs=0.1)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_the_same_seed_gives_the_same_times(process):
    assert process.times(50, Random(3)) == process.times(50, Random(3))


def test_a_seed_means_the_same_on_every_machine():
    assert Poisson(2.0).times(3, Random("5 arrivals")) == pytest.approx([0.0719292096, 0.7276888791, 1.5144463167])
    assert Gamma(2.0, 2.0).times(3, Random("5 arrivals")) == pytest.approx([0.000916553066, 0.0155187954, 0.0416161707])


def test_at_once_is_time_zero():
    assert AtOnce().times(3, Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_rates_are_refused(rate):
    for process in (Constant, Poisson, Gamma):
        with pytest.raises(ConfigError, match="rate"):
            process(rate)
    with pytest.raises(ConfigError, match="variation"):
        Gamma(1.0, rate)


@pytest.mark.parametrize(("start", "end"), [(2.0, 10.0), (10.0, 2.0), (5.0, 5.0)])
def test_a_ramp_goes_evenly_from_one_rate_to_the_other(start, end):
    times = RateRamp(start, end).times(20_000, Random(2))
    assert times == sorted(times)
    whole = 20_000 / ((start + end) / 2)
    assert times[-1] == pytest.approx(whole, rel=0.03)
    for share in (0.05, 0.5, 0.95):
        middle = share * whole
        seen = sum(middle - whole / 40 <= time < middle + whole / 40 for time in times) / (whole / 20)
        assert seen == pytest.approx(start + (end - start) * share, rel=0.08)


def test_an_impossible_ramp_is_refused():
    with pytest.raises(ConfigError, match="rate"):
        RateRamp(1.0, float("nan"))
    with pytest.raises(ConfigError, match="rate"):
        RateRamp(0.0, 1.0)
