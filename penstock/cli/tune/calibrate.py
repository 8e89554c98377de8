"""Step times of a server that serves for real: requests of the load, sent by more and more users for some seconds.

What shares the machine with the engine (HTTP, the client) is in these times, as it is when finalists are measured. A crowd
leaves the engine less of a small machine than the load does, so the load itself is sent as well, and the fitted times are
scaled until a simulation of it takes what it took.
"""

import asyncio
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from penstock.cli.profile import profile_of_log
from penstock.cli.tune.live import LiveServer
from penstock.config import ModelConfig
from penstock.errors import EngineError
from penstock.metrics.summary import Slo, Summary
from penstock.tools.bench.client.counters import Counters
from penstock.tools.bench.load import LoadShape, run_plan
from penstock.tools.bench.plan import Ask, TrafficPlan
from penstock.tools.bench.report.figures import figures_of
from penstock.tools.tune.setting import Setting

if TYPE_CHECKING:
    from penstock.tools.cost.measured.profile import Profile

USERS = (2, 1, 4, 16, 8, 32)
GPU_FACTOR = 4
"""How many times as many users a GPU needs to show what batches take."""
FACTORS = tuple(1.06**step for step in range(-24, 13))
"""From a fourth to twice the fitted times."""
NO_SLO = Slo()
MOST_ANSWER = 24
"""Tokens: many prompts in little time, as many steps with prompts as without."""


def profile_live(
    model: ModelConfig, plan_of: Callable[[str], TrafficPlan], seconds: float, *, is_gpu: bool
) -> "tuple[Profile, Summary]":
    """What steps take, and how one run of the load went. Drafts are left out: what they save is not what a step takes."""
    setting = Setting() if is_gpu else Setting(speculate="off")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        server = LiveServer(setting, model, words=("--step-log", str(path)))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                summary = runner.run(_drive(server, plan_of, seconds, GPU_FACTOR if is_gpu else 1))
        finally:
            server.stop()
        return profile_of_log(path), summary


async def _drive(server: LiveServer, plan_of: Callable[[str], TrafficPlan], seconds: float, factor: int) -> Summary:
    await server.open()
    if server.client is None or server.target is None:
        raise EngineError("the server that steps are measured on is gone")
    for users in USERS:
        asks = tuple(map(_short, plan_of(f"steps {users} ").asks))
        shape = LoadShape(users=factor * users, duration_s=seconds / len(USERS), stops=False)
        await run_plan(server.client, server.target, TrafficPlan(asks), shape)
    plan = plan_of("the load ")
    measured = await run_plan(server.client, server.target, plan, LoadShape(stops=False))
    return figures_of(measured, plan, server.target, NO_SLO, Counters()).summary


def anchored(profile: "Profile", summary: Summary, simulated: Callable[["Profile"], Summary]) -> "Profile":
    """The profile of a machine so much slower or faster that the simulated load takes what the measured one took."""

    def off(factor: float) -> float:
        found = simulated(replace(profile, fitted=profile.fitted.slower(factor)))
        pairs = [(getattr(found, name).p50, getattr(summary, name).p50) for name in ("ttft", "tpot", "e2e")]
        return sum(abs(math.log(one / other)) for one, other in pairs if one > 0.0 and other > 0.0)

    return replace(profile, fitted=profile.fitted.slower(min(FACTORS, key=off)))


def _short(ask: Ask) -> Ask:
    return replace(ask, turns=tuple(replace(turn, num_answer=min(turn.num_answer, MOST_ANSWER)) for turn in ask.turns))
