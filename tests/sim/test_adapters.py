"""Adapters in simulated time: what they hold, what they add to steps, and how long a cold one takes."""

from dataclasses import replace
from random import Random

import pytest

from penstock.cli.plan.model import describe
from penstock.cli.simulate.command import Config, make_fleet
from penstock.cli.simulate.load import SimulatedLoad
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models.adapters import adapter_bytes
from penstock.tools.cost.precision import Precision
from penstock.tools.sim.replica.adapters import AdaptedCost, AdapterShelf, AskedAdapters, ShelfRoom
from penstock.tools.sim.simulation import Fleet, Result, simulate

SPEC = describe("llama-3.1-8b").spec
LOAD = SimulatedLoad(rate=20.0, num_requests=150, prompts="200", answers="40")


def fleet(**asked: object) -> Fleet:
    return make_fleet(Config(asked=AskedAdapters(**asked)), SPEC, Precision())  # type: ignore[arg-type]


def served(made: Fleet, asked: AskedAdapters) -> Result:
    return simulate(made, LOAD.workload(SPEC.vocab_size, asked.shares), keep_times=True)


def test_slots_take_their_bytes_from_the_cache() -> None:
    plain, adapted = fleet(), fleet(adapters=50, adapter_rank=16, max_adapters=12)
    assert adapted.sizing.workspace_bytes - plain.sizing.workspace_bytes == 12 * adapter_bytes(SPEC, 16)
    assert adapted.sizing.num_blocks < plain.sizing.num_blocks


def test_steps_cost_more_the_more_adapters_they_have() -> None:
    batch = Batch(0, tuple(Chunk(row, 99, 1, (), (), True, None) for row in range(64)))
    costs = [fleet(adapters=count, max_adapters=64).cost.step_s(batch) for count in (0, 1, 8, 32)]
    assert costs == sorted(set(costs))
    assert fleet(adapters=32, adapter_rank=64, max_adapters=64).cost.step_s(batch) > costs[-1]


@pytest.mark.parametrize("skew", ["zipf", "uniform"])
def test_adapters_of_a_batch_are_as_many_as_draws_give(skew: str) -> None:
    cost, random = fleet(adapters=20, adapter_skew=skew, max_adapters=64).cost, Random(5)
    assert isinstance(cost, AdaptedCost)
    for count in (1, 7, 30):
        draws = [len(set(random.choices(range(20), cost.shares, k=count))) for _ in range(3000)]
        assert cost.num_distinct(count) == pytest.approx(sum(draws) / len(draws), rel=0.05)


def test_the_same_requests_come_whether_they_have_adapters_or_not() -> None:
    plain, adapted = LOAD.workload(1000), LOAD.workload(1000, AskedAdapters(adapters=9).shares)
    assert [replace(one, adapter="") for one in adapted.requests] == list(plain.requests)
    assert len({one.adapter for one in adapted.requests}) == 9


def test_a_skipped_step_gives_what_every_step_gives() -> None:
    asked = AskedAdapters(adapters=30, max_adapters=4)
    made = fleet(adapters=30, max_adapters=4)
    fast, slow = (served(replace(made, predicts=predicts), asked).summary for predicts in (True, False))
    assert (fast.ttft, fast.e2e) == (slow.ttft, slow.e2e)


def test_a_cold_adapter_waits_for_its_file_and_a_warm_one_does_not() -> None:
    shelf = AdapterShelf(ShelfRoom(num_slots=2, load_s=1.0))
    assert [shelf.ask("a", 0.0), shelf.ask("a", 0.5), shelf.ask("a", 3.0)] == [1.0, 1.0, 3.0]
    assert [shelf.ask("b", 3.0), shelf.ask("c", 5.0), shelf.ask("b", 9.0), shelf.ask("a", 9.0)] == [4.0, 6.0, 9.0, 10.0]
    assert shelf.num_loads == 4
    asked = AskedAdapters(adapters=30, max_adapters=30)
    few, many = served(fleet(adapters=30, max_adapters=2), asked), served(fleet(adapters=30, max_adapters=30), asked)
    assert many.replicas[0].num_adapter_loads <= 30
    assert few.replicas[0].num_adapter_loads > many.replicas[0].num_adapter_loads
    assert few.summary.num_successes == many.summary.num_successes == LOAD.num_requests
