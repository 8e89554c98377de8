"""Laws of error bars: nine in ten intervals hold what another period of the same uneven machine measures, on loads not seen."""

from random import Random

import pytest

from penstock.config import EngineConfig
from penstock.runtime.core.features import Features
from penstock.runtime.sizing import Sizing
from penstock.tools.cost.hardware import find
from penstock.tools.cost.measured.fit import CostRamp
from penstock.tools.cost.measured.ramps import Fitted, MeasuredCost
from penstock.tools.cost.measured.slowdown import slowdowns_of
from penstock.tools.planner.verify.check import SHARES, TIMES, CheckRow, check
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.workload.arrivals import Gamma, Poisson
from penstock.tools.workload.lengths import LogNormal, Uniform
from penstock.tools.workload.workload import Recipe, SharedPrefix

SIZING = Sizing(
    num_blocks=4096, block_size=16, block_bytes=16 << 10, max_context=2048, weight_bytes=0, workspace_bytes=0,
    free_bytes=8 << 30, max_batch_tokens=512,
)  # fmt: skip
RAMPS = (CostRamp("steps", 0.0, 1.0, 0.006), CostRamp("rows", 0.0, 1e9, 0.0002))


def machine(seed: int, num_steps: int = 4000) -> Fleet:
    """One period of a shared machine: slow for a while now and then, with a tail of standstills."""
    random, seconds, level = Random(f"{seed} machine"), [], 1.0
    for _ in range(num_steps):
        if random.random() < 0.02:
            level = random.lognormvariate(0.0, 0.35)
        pause = random.expovariate(1 / 0.05) if random.random() < 0.01 else 0.0
        seconds.append(0.01 * level * random.gauss(1.0, 0.05) + pause)
    slowdowns = slowdowns_of(seconds, [sum(seconds) / num_steps] * num_steps)
    fitted = Fitted(RAMPS, (), False, Features(*[10**9] * 9), num_steps, {}, slowdowns=slowdowns)
    return Fleet(EngineConfig(), SIZING, MeasuredCost(fitted))


def loads():
    """Bursty, long-tailed, with shared prefixes, and plain: twenty that nothing was fitted on."""
    for seed in range(20):
        arrivals = Gamma(6.0, 3.0) if seed % 4 == 0 else Poisson(8.0)
        prompts = LogNormal(60, 1.0, 4, 900) if seed % 4 == 1 else Uniform(10, 250)
        prefix = SharedPrefix(160, 2) if seed % 4 == 2 else None
        yield Recipe(arrivals, prompts, Uniform(5, 60), 50, prefix).make(seed)


def figures(fleet: Fleet, workload) -> dict[str, float]:
    summary = simulate(fleet, workload).summary
    found = {f"{name}_{share}": getattr(getattr(summary, name), share) for name in TIMES for share in SHARES}
    return found | {"output_tokens_per_s": summary.output_tokens_per_s}


def test_nine_in_ten_intervals_hold_another_period_of_the_same_machine() -> None:
    held = total = 0
    fleet = machine(0)
    for number, workload in enumerate(loads()):
        moments = [figures(one, workload) for one in fleet.moments]
        measured = figures(machine(100 + number), workload)
        for row in check(moments, measured, 0.1, model_error=0.03).rows:
            low, high = row.interval
            held += low <= row.measured <= high
            total += 1
    assert held / total >= 0.9, f"{held} of {total}"


def test_an_interval_holds_its_moments_and_widens_with_doubt() -> None:
    narrow, wide = (CheckRow("x", (1.0, 1.1, 0.9), 1.0, True, error) for error in (0.0, 0.1))
    assert narrow.interval[0] < 0.9
    assert wide.interval[0] < narrow.interval[0]
    assert wide.interval[1] > narrow.interval[1]
    assert CheckRow("x", (2.0,), 2.0, True).interval == (2.0, 2.0)


@pytest.mark.parametrize(("name", "word"), [("h200", "measured"), ("h100-sxm", "corrected"), ("l4", "corrected")])
def test_a_row_of_the_catalogue_says_where_its_figures_come_from(name: str, word: str) -> None:
    assert find(name).trust.startswith(word)
