"""The simulator makes the engine's own batches when the engine's own step times are replayed to it from a step log."""

from dataclasses import replace
from random import Random

import pytest

from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.scripted import ScriptedRunner
from penstock.runtime.engine.step_log import StepFile
from penstock.runtime.sizing import make_scheduler
from penstock.tools.cost.measured.profile import read_steps
from penstock.tools.cost.measured.replay import Replay, as_taken
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.arrivals import AtOnce, Gamma
from penstock.tools.workload.workload import SharedPrefix, Workload
from tests.sim.fleets import make_fleet, make_workload


class Recording(Replay):
    """Remembers whole batches too."""

    def __init__(self, steps):
        super().__init__(steps)
        self.batches = []

    def step_s(self, batch):
        self.batches.append(batch)
        return super().step_s(batch)


def serve_logged(fleet, workload, path, seed):
    """An engine with a scripted runner on a clock that every look and every step moves by some random time."""
    random = Random(seed)
    now = 0.0

    def pass_time(seconds):
        nonlocal now
        now += seconds * random.uniform(0.2, 3.0)
        return now

    file = StepFile(path, {})
    runner = ScriptedRunner(lambda row, position: 0, lambda batch: pass_time(0.004 + 2e-5 * batch.num_tokens), [])
    scheduler = make_scheduler(fleet.config, fleet.sizing)
    engine = Engine(scheduler, runner, lambda: pass_time(1e-5), on_step=file.write)
    coming, taken_s, first_s = list(workload.requests), {}, None
    while coming or engine.has_work:
        handed_over = []
        while coming and coming[0].arrival_s <= now:
            handed_over.append(coming.pop(0))
            engine.submit(handed_over[-1])
        if not engine.has_work:
            engine.wait(0.0)
            now = max(now, coming[0].arrival_s)
            continue
        engine.step()
        first_s = engine.turn_s if first_s is None else first_s
        turn_s = engine.turn_s - first_s
        taken_s.update((request.request_id, turn_s) for request in handed_over)
    return runner.batches, taken_s


WORKLOADS = {
    "a steady load": make_workload(1, num_requests=40, rate=25.0),
    "bursts and idle times": make_workload(2, num_requests=40, arrivals=Gamma(6.0, 4.0)),
    "all at once": make_workload(3, num_requests=30, arrivals=AtOnce()),
    "shared prefixes": make_workload(4, num_requests=40, rate=25.0, prefix=SharedPrefix(64, 2, 0.5)),
}
FLEETS = {
    "continuous": make_fleet(),
    "small batches": make_fleet(max_batch_tokens=64, max_sequences=8),
    "static": make_fleet("static", max_sequences=8),
}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("fleet", FLEETS)
def test_replayed_times_give_the_engines_batches(fleet, workload, tmp_path):
    requests, fleet = WORKLOADS[workload].requests, FLEETS[fleet]
    path = tmp_path / "steps"
    batches, taken_s = serve_logged(fleet, WORKLOADS[workload], path, seed=7)
    _, steps = read_steps(path.read_text(), "steps")
    assert len(steps) == len(batches) > 30
    cost = Recording(steps)
    again = Workload(tuple(as_taken(requests, taken_s, steps)))
    simulate(replace(fleet, cost=cost, predicts=False), again)
    assert cost.asked == [step.features for step in steps]
    assert [one.chunks for one in cost.batches] == [one.chunks for one in batches]
