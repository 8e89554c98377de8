"""The simulator speculates as the engine does: the same rule over the same steps gives the same tokens a step and times."""

from collections.abc import Sequence
from random import Random
from statistics import fmean

import pytest

from penstock.runtime.core.batch import Batch, Chunk, StepOutput
from penstock.runtime.draft.drafter import Guess, View
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.sizing import make_scheduler
from penstock.tools.cost.cost import Cost
from penstock.tools.sim.replica.speculation import Guessing
from penstock.tools.sim.simulation import simulate
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import Workload
from tests.sim.fleets import make_fleet, make_workload

VOCABULARY = 1000


def said(position: int) -> int:
    return position * 7919 % VOCABULARY


class TimedRunner:
    """A model that says what is known beforehand, on a device whose steps take what a cost says."""

    def __init__(self, cost: Cost) -> None:
        self.now = 0.0
        self.num_steps = 0
        self._cost = cost

    def launch(self, batch: Batch, masks: object = None) -> StepOutput:
        self.now += self._cost.step_s(batch)
        self.num_steps += 1
        return StepOutput(tuple(self._drawn(chunk) for chunk in batch.chunks))

    def _drawn(self, chunk: Chunk) -> tuple[int, ...]:
        if not chunk.samples:
            return ()
        first = chunk.end - chunk.num_drafts
        drafts = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
        count = 0
        while count < len(drafts) and drafts[count] == said(first + count):
            count += 1
        return tuple(said(place) for place in range(first, first + count + 1))


class Halfwit:
    """Knows what will be said, but for a chance at each token."""

    name = "halfwit"

    def __init__(self, acceptance: float) -> None:
        self._acceptance = acceptance
        self._random = Random(9)

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        return [Guess(self._tokens(len(view.tokens), most), self.name) for view in views]

    def _tokens(self, begin: int, count: int) -> tuple[int, ...]:
        places = range(begin, begin + count)
        return tuple(said(place) if self._random.random() < self._acceptance else -1 for place in places)

    def seconds(self, length: int) -> float:
        return 0.0

    def finish(self, view: View) -> None:
        pass


def serve(engine: Engine, runner: TimedRunner, workload: Workload) -> dict[int, list[tuple[float, int]]]:
    """When how many tokens of each request came."""
    due = [(request.arrival_s, request) for request in workload.requests]
    heard: dict[int, list[tuple[float, int]]] = {}
    while due or engine.has_work:
        if not engine.has_work:
            runner.now = max(runner.now, due[0][0])
        while due and due[0][0] <= runner.now:
            engine.submit(due.pop(0)[1])
        for delta in engine.step():
            if delta.token_ids:
                heard.setdefault(delta.request_id, []).append((runner.now, len(delta.token_ids)))
    return heard


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
@pytest.mark.parametrize("rate", [2.0, 12.0])
def test_tokens_a_step_and_times_are_the_engines(acceptance: float, rate: float) -> None:
    workload = make_workload(num_requests=100, rate=rate, prompts=Uniform(20, 300), answers=Fixed(200))
    fleet = make_fleet(guessing=Guessing(None, acceptance, draft_cost=0.0))
    predicted = simulate(fleet, workload)
    runner = TimedRunner(fleet.cost)
    speculator = Speculator([Halfwit(acceptance)])
    engine = Engine(make_scheduler(fleet.config, fleet.sizing), runner, lambda: runner.now, speculator=speculator)
    heard = serve(engine, runner, workload)
    assert engine.proposer.proposals is not None
    num_tokens = sum(count for each in heard.values() for _, count in each)
    assert num_tokens == predicted.summary.num_output_tokens
    tokens_a_step = num_tokens / (num_tokens - engine.proposer.proposals.num_accepted)
    assert num_tokens / (num_tokens - predicted.replicas[0].num_accepted) == pytest.approx(tokens_a_step, rel=0.03)
    tpot_s = fmean((each[-1][0] - each[0][0]) / (sum(count for _, count in each) - 1) for each in heard.values())
    assert predicted.summary.tpot.mean == pytest.approx(tpot_s, rel=0.10)
