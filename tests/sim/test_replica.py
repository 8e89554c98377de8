"""Laws of a replica: it makes the engine's batches, and predicted runs change nothing but the time a simulation takes."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metrics.timeline import Timeline
from penstock.runtime.core.batch import StepOutput
from penstock.runtime.engine.engine import Engine
from penstock.runtime.sizing import make_scheduler, step_size
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce, Gamma, Poisson
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.workload import SharedPrefix
from tests.sim.fleets import COST, make_fleet, make_workload, with_requests


class VirtualDevice:
    """A runner on a clock of its own: a batch is ready when the cost model says so, and waiting for it moves the clock."""

    def __init__(self):
        self.now = 0.0
        self.batches = []
        self._free_s = 0.0

    def launch(self, batch):
        self.batches.append(batch)
        self._free_s = max(self.now, self._free_s) + COST.step_s(batch)
        return Ticket(self, batch, self._free_s)


class Ticket:
    def __init__(self, device, batch, end_s):
        self._device, self._batch, self._end_s = device, batch, end_s

    def result(self):
        self._device.now = max(self._device.now, self._end_s)
        return StepOutput(tuple((0,) if chunk.samples else () for chunk in self._batch.chunks))


def serve(fleet, workload):
    """Serve a workload with the engine itself, its clock moved by the device and, while idle, to the next event."""
    device = VirtualDevice()
    scheduler, sized = make_scheduler(fleet.config, fleet.sizing), step_size(fleet.config, "cuda")
    engine = Engine(scheduler, device, lambda: device.now, depth=fleet.depth, step_size=sized)
    coming = deque(workload.requests)
    ends = {}
    while coming or engine.has_work:
        while coming and coming[0].arrival_s <= device.now:
            engine.submit(coming.popleft())
        num_batches = len(device.batches)
        for delta in engine.step():
            if delta.finish is not None:
                ends[delta.request_id] = device.now
        if len(device.batches) == num_batches and not engine._launched:
            wake_s = engine.scheduler.wake_s
            times = [time for time in (wake_s, coming[0].arrival_s if coming else None) if time is not None]
            device.now = max(device.now, min(times, default=device.now))
    return device.batches, ends


class Recording:
    """The cost, remembering what was asked of it."""

    def __init__(self):
        self.batches = []

    def step_s(self, batch):
        self.batches.append(batch)
        return COST.step_s(batch)

    def run_s(self, batch, num_steps):
        assert num_steps == 1
        return [self.step_s(batch)]


FLEETS = {
    "continuous": make_fleet(),
    "small batches": make_fleet(max_batch_tokens=64, max_sequences=8),
    "preempting": make_fleet(num_blocks=60, max_sequences=32),
    "a target": make_fleet(max_sequences=8, tpot_target_ms=20.0),
    "fair": make_fleet(order="fair", max_batch_tokens=64, max_sequences=48),
    "static": make_fleet("static", max_sequences=8),
    "dynamic": make_fleet("dynamic", max_sequences=8, gather_s=0.1),
}


@pytest.mark.parametrize(("depth", "arrivals"), [(1, AtOnce()), (1, Poisson(20.0)), (2, AtOnce()), (2, Poisson(20.0))])
@pytest.mark.parametrize("name", FLEETS)
def test_simulator_and_engine_make_identical_batches(name, depth, arrivals):
    fleet = replace(FLEETS[name], depth=depth)
    workload = make_workload(3, num_requests=40, arrivals=arrivals, prefix=SharedPrefix(64, 2, 0.5))
    workload = with_requests(workload, lambda request: replace(request, tenant="aab"[request.request_id % 3]))
    recording = Recording()
    result = simulate(replace(fleet, cost=recording, predicts=False), workload)
    batches, ends = serve(fleet, workload)
    assert recording.batches == batches
    assert sorted(timeline.end_s for timeline in result.timelines) == sorted(ends.values())
    if name == "preempting":
        assert result.num_preemptions > 0


def test_a_target_for_the_time_between_tokens_is_kept_as_the_server_keeps_it():
    """Steps begin with more tokens than the target allows."""
    prompts = make_workload(4, arrivals=AtOnce(), prompts=Uniform(6000, 8000), answers=Uniform(10, 30))
    free, held = (
        simulate(make_fleet(max_sequences=8, max_batch_tokens=4096, tpot_target_ms=target_ms), prompts)
        for target_ms in (None, 20.0)
    )
    assert held.summary.itl.p90 <= 0.02 < free.summary.itl.p50


def assert_equal(one, other):
    assert one.num_steps == other.num_steps
    for left, right in zip(one.timelines, other.timelines, strict=True):
        assert all(getattr(left, name) == getattr(right, name) for name in Timeline.__slots__)
    for left, right in zip(one.replicas, other.replicas, strict=True):
        assert left.num_computed_tokens == right.num_computed_tokens
        assert left.num_preemptions == right.num_preemptions
        assert left.busy_fraction == pytest.approx(right.busy_fraction)
        assert left.mean_running == pytest.approx(right.mean_running)
        assert left.mean_waiting == pytest.approx(right.mean_waiting)


def assert_predicting_changes_nothing(fleet, workload):
    stepwise = simulate(replace(fleet, predicts=False), workload, keep_times=True)
    assert_equal(simulate(fleet, workload, keep_times=True), stepwise)


@pytest.mark.parametrize("name", ["continuous", "small batches", "static", "dynamic"])
def test_foretold_runs_equal_single_steps(name):
    assert_predicting_changes_nothing(replace(FLEETS[name], num_replicas=2), make_workload(5))


@pytest.mark.parametrize("order", ["priority", "deadline", "fair"])
def test_foretold_runs_equal_single_steps_in_every_order(order):
    workload = with_requests(
        make_workload(6, arrivals=Gamma(40.0, 2.0)),
        lambda request: replace(
            request,
            priority=request.request_id % 3,
            tenant="ab"[request.request_id % 2],
            deadline_s=request.arrival_s + 0.1 * (1 + request.request_id % 7) if request.request_id % 2 else None,
        ),
    )
    assert_predicting_changes_nothing(make_fleet(order=order, max_sequences=4), workload)


def test_foretold_runs_equal_single_steps_with_several_choices():
    def several(request):
        return replace(request, params=replace(request.params, n=1 + request.request_id % 3))

    assert_predicting_changes_nothing(make_fleet(), with_requests(make_workload(7), several))


def test_foretold_runs_equal_single_steps_when_all_come_at_once_and_some_are_refused():
    workload = make_workload(8, arrivals=AtOnce(), prefix=SharedPrefix(64, 2, 0.5))
    assert_predicting_changes_nothing(make_fleet(max_waiting=30, max_sequences=16), workload)


LOADS = {
    "seed": st.integers(0, 1000),
    "rate": st.floats(1.0, 200.0),
    "max_sequences": st.integers(1, 24),
    "batching": st.sampled_from(["continuous", "static", "dynamic"]),
}


@settings(deadline=None, max_examples=25)
@given(**LOADS)
def test_foretold_runs_equal_single_steps_whatever_the_load(seed, rate, max_sequences, batching):
    fleet = make_fleet(batching, max_sequences=max_sequences, max_batch_tokens=128)
    assert_predicting_changes_nothing(fleet, make_workload(seed, num_requests=25, rate=rate))


@settings(deadline=None, max_examples=25)
@given(num_blocks=st.integers(50, 400), **LOADS)
def test_where_blocks_are_short_foretelling_costs_little_truth(num_blocks, seed, rate, max_sequences, batching):
    """A run cut short holds blocks a few steps too early, which may push somebody out a few steps too early."""
    fleet = make_fleet(batching, num_blocks=num_blocks, max_sequences=max_sequences, max_batch_tokens=128)
    workload = make_workload(seed, num_requests=25, rate=rate)
    predicted, stepwise = simulate(fleet, workload), simulate(replace(fleet, predicts=False), workload)
    assert predicted.summary.outcomes == stepwise.summary.outcomes
    assert predicted.summary.num_output_tokens == stepwise.summary.num_output_tokens
    assert predicted.summary.duration_s == pytest.approx(stepwise.summary.duration_s, rel=0.05)
    assert predicted.summary.e2e.p50 == pytest.approx(stepwise.summary.e2e.p50, rel=0.05)


def test_requests_that_come_together_are_taken_in_together():
    fleet, workload = FLEETS["static"], make_workload(8, num_requests=20, arrivals=AtOnce())
    recording = Recording()
    simulate(replace(fleet, cost=recording, predicts=False), workload)
    batches, _ = serve(fleet, workload)
    assert len(batches[0].chunks) == 8
    assert recording.batches == batches
    assert_predicting_changes_nothing(FLEETS["continuous"], workload)
