"""Laws of scaling by prediction: on bursts fewer requests are late than by a threshold, and calm costs nothing."""

from dataclasses import replace
from random import Random

from penstock.metrics.summary import Slo
from penstock.service.cluster.scaling import ArrivalTrend, Pressure, Scaler, Scaling, ServedRate, missed_ahead
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.workload import Recipe
from tests.sim.fleets import make_fleet

THRESHOLD = Scaling(1, 8, target=16.0, cold_start_s=15.0, down_delay_s=30.0, interval_s=1.0)


def bursts(seed: int, count: int) -> list:
    """A load that swells from 3 to 48 a second and falls again within two minutes, as a recording of days shows it."""
    random, now, found = Random(seed), 0.0, []
    for request in Recipe(AtOnce(), Uniform(50, 400), Uniform(20, 120), count).make(seed).requests:
        phase = now % 240 / 240
        now += random.expovariate(3.0 + 45.0 * max(0.0, 1.0 - abs(phase - 0.5) * 4.0))
        found.append(replace(request, arrival_s=now))
    return found


def test_fewer_are_late_than_by_a_threshold_on_bursts() -> None:
    late = {"threshold": 0.0, "predicted": 0.0}
    for seed in range(2):
        requests = bursts(seed, 900)
        for name, scaling in (("threshold", THRESHOLD), ("predicted", replace(THRESHOLD, ttft_s=1.0))):
            result = simulate(make_fleet(scaling=scaling, max_sequences=8), requests, Slo(ttft_s=1.0))
            late[name] += 1.0 - result.summary.good_fraction
    assert late["predicted"] < 0.75 * late["threshold"]


def test_a_calm_load_asks_for_no_more() -> None:
    pressure = Pressure(0.0, 0, served_per_s=5.0, arrivals_per_s=3.0, growth_per_s=0.0)
    assert Scaler(replace(THRESHOLD, ttft_s=1.0)).wanted(1, 3, 0.5, 0.0, pressure) == 1
    assert missed_ahead(1, 1, pressure, 60.0, 1.0) == 0.0


def test_a_growing_load_asks_before_anybody_waits_and_a_slow_start_asks_for_more() -> None:
    pressure = Pressure(0.0, 0, served_per_s=5.0, arrivals_per_s=4.0, growth_per_s=0.2)
    scaler = Scaler(replace(THRESHOLD, ttft_s=1.0))
    soon = scaler.wanted(1, 4, 0.9, 0.0, pressure)
    assert soon > 1
    scaler.learn_start(60.0)
    assert scaler.wanted(1, 4, 0.9, 1.0, pressure) > soon


def test_a_trend_follows_a_ramp() -> None:
    trend, total = ArrivalTrend(), 0.0
    for second in range(60):
        total += 2.0 + 0.5 * second
        per_s, growth = trend.note(round(total), float(second))
    assert abs(per_s - 31.5) < 3.0
    assert abs(growth - 0.5) < 0.1


def test_how_requests_slow_each_other_down_tells_what_a_replica_serves_before_any_has_waited() -> None:
    """Each stays 2 s and a fiftieth of a second for each beside it: 50 a second are served at most."""
    rate, served = ServedRate(), 0.0
    for second in range(60):
        inside = 1 + second // 2
        served += inside / (2.0 + inside / 50.0)
        found = rate.note(round(served), 1, float(second), is_full=False, num_pending=inside)
    assert 30.0 < found < 80.0
    assert rate.per_s == 0.0, "what was seen while others waited is another thing"
