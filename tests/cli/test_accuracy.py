"""Predicted beside measured: figures are over the requests of all runs, and a replay gives back what was served."""

from dataclasses import replace

import pytest

from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.scripted import ScriptedRunner
from penstock.runtime.sizing import make_scheduler
from penstock.tools.cost.measured.ramps import MeasuredCost
from penstock.tools.cost.measured.replay import Replay
from penstock.tools.cost.measured.slowdown import Slowdown
from penstock.tools.measure import live
from penstock.tools.measure.accuracy import AccuracyComparison, MeasuredRun, Measurement, figures_of, measure, predict
from penstock.tools.workload.arrivals import Constant
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import Recipe
from tests.cost.test_measured import FITTED
from tests.sim.fleets import make_fleet

WORKLOAD = Recipe(Constant(100.0), Uniform(4, 40), Fixed(6), 30, vocab_size=50).make(5)


def test_figures_are_over_the_requests_of_all_runs():
    one, other = MeasuredRun([1.0, 2.0], [0.1], [3.0], 10, 2.0), MeasuredRun([3.0], [0.3], [5.0], 20, 4.0)
    figures = figures_of([one, other])
    assert figures["ttft_p50_s"] == 2.0
    assert figures["tpot_p50_s"] == pytest.approx(0.2)
    assert figures["e2e_p50_s"] == 4.0
    assert figures["output_tokens_per_s"] == 5.0
    slower = one._replace(ttft=[2.0, 4.0])
    comparison = AccuracyComparison((slower, other), (Measurement(one, 0.0, None), Measurement(other, 0.2, None)), 0.1)
    assert comparison.errors["ttft_p50_s"] == pytest.approx(0.5)
    assert comparison.errors["e2e_p50_s"] == 0.0
    data = comparison.as_data()
    assert data["ttft_p50_s"]["predicted_each"] == [3.0, 3.0]
    assert data["ttft_p50_s"]["measured_each"] == [1.5, 3.0]
    assert (data["num_requests"], data["duration_s"], data["disturbed_fraction"]) == (2, 6.0, 0.2)


def test_the_range_of_an_error_is_what_other_runs_of_the_same_kind_might_have_given():
    def comparison(errors):
        runs = [Measurement(MeasuredRun([1.0], [1.0], [1.0], 10, 1.0), 0.0, None)] * len(errors)
        return AccuracyComparison(
            tuple(MeasuredRun([1.0 + off], [1.0], [1.0], 10, 1.0) for off in errors), tuple(runs), 0.0
        )

    alike, apart = comparison([0.1] * 8), comparison([-0.3, 0.3] * 8)
    assert alike.ranges()["ttft_p50_s"] == pytest.approx((0.1, 0.1))
    low, high = apart.ranges()["ttft_p50_s"]
    assert -0.31 < low < -0.1
    assert 0.1 < high < 0.31
    assert apart.ranges()["tpot_p50_s"] == (0.0, 0.0)
    assert apart.as_data()["ttft_p50_s"]["error_range"] == [round(low, 4), round(high, 4)]


def test_a_machine_with_slow_moments_is_told_with_its_luckiest_and_unluckiest():
    cost = MeasuredCost(replace(FITTED, slowdowns=(Slowdown(2.0, 0.5), Slowdown(2.0, 2.0))))
    moments, _ = predict(make_fleet(cost=cost), WORKLOAD)
    assert len(moments) > 1
    assert {len(moment.e2e) for moment in moments} == {30}
    predicted = MeasuredRun.joined(moments)
    assert len(predicted.e2e) == 30 * len(moments)
    data = AccuracyComparison((predicted,), (Measurement(moments[0], 0.0, None),), 0.0, moments).as_data()
    low, high = data["tpot_p50_s"]["predicted_range"]
    assert 1.5 * low < high
    assert low <= data["tpot_p50_s"]["predicted"] <= high
    assert len(predict(make_fleet(cost=MeasuredCost(replace(FITTED, slowdowns=()))), WORKLOAD)[0]) == 1


class Clock:
    """Time that passes when it is looked at, slept or taken."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        self.now_s += 2e-5
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def test_with_the_steps_own_times_everything_is_as_it_was_served_though_the_clock_stood_still(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    steps = []
    fleet = make_fleet(cost=Replay([]))
    scheduler = make_scheduler(fleet.config, fleet.sizing)
    engine = Engine(scheduler, ScriptedRunner(), clock.monotonic, on_step=steps.append)
    monkeypatch.setattr(engine, "wait", clock.sleep)
    measured = measure(fleet, engine, WORKLOAD, steps, lambda: clock.sleep(0.005))
    assert len(measured.run.e2e) == len(measured.replayed.e2e) == 30
    assert measured.replayed.e2e == pytest.approx(measured.run.e2e, abs=0.001), "thirty pauses of 5 ms would show"
    assert measured.replayed.duration_s == pytest.approx(measured.run.duration_s, abs=0.002)
