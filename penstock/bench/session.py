"""A whole benchmark: the server is asked what it is, warmed up, measured as often as asked, and every run is judged.

Each run sends words of its own: what one run has put into the server's cache helps no other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.bench.answer import Answer
from penstock.bench.counters import read_counters
from penstock.bench.figures import Figures, figures_of
from penstock.bench.flags import Flag, flags_of
from penstock.bench.http import Client
from penstock.bench.knee import Knee, Trial, find_knee
from penstock.bench.load import Progress, Shape, run_plan
from penstock.bench.plan import Plan
from penstock.bench.target import Target
from penstock.metrics.summary import Slo

WARM_UP_USERS = 4


class PlanMaker(Protocol):
    def __call__(self, name: str, rate: float | None) -> Plan:
        """The plan of a run; equal arrivals and lengths for an equal rate, words by the run's name."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run."""

    figures: Figures
    flags: tuple[Flag, ...]
    answers: tuple[Answer, ...]

    @property
    def is_valid(self) -> bool:
        return not any(flag.level == "invalid" for flag in self.flags)


@dataclass(frozen=True, slots=True)
class Goal:
    slo: Slo
    attainment: float = 0.95
    """Share of requests that must meet the SLO for a rate to count as carried."""

    def is_met(self, run: Run) -> bool:
        figures = run.figures
        return not figures.is_saturated and figures.summary.good_fraction >= self.attainment


@dataclass(frozen=True, slots=True)
class Session:
    """A client bound to a target. `watch` is told what is going on."""

    client: Client
    target: Target
    shape: Shape
    goal: Goal
    make_plan: PlanMaker
    watch: Callable[[str, Progress], None] | None = None

    async def warm_up(self, plan: Plan) -> None:
        """Connections are opened, caches of code and memory filled; nothing of it is counted."""
        users = min(self.shape.users or WARM_UP_USERS, max(len(plan.asks), 1))
        shape = replace(self.shape, users=users, duration_s=None)
        await run_plan(self.client, self.target, plan, shape, self._watch("warming up"))

    async def measure(self, name: str, rate: float | None = None) -> Run:
        plan = self.make_plan(name, rate)
        before = await read_counters(self.client)
        measured = await run_plan(self.client, self.target, plan, self.shape, self._watch(name))
        server = (await read_counters(self.client)).since(before)
        figures = figures_of(measured, plan, self.target, self.goal.slo, server, rate)
        flags = flags_of(figures, is_closed=self.shape.users is not None)
        return Run(figures, tuple(flags), measured.answers)

    async def find_knee(self, start: float) -> tuple[Knee, list[Run]]:
        runs: list[Run] = []

        async def attempt(rate: float) -> Trial:
            run = await self.measure(f"rate {rate:.4g}", rate)
            runs.append(run)
            return Trial(rate, self.goal.is_met(run), run.is_valid)

        return await find_knee(attempt, start), runs

    def _watch(self, name: str) -> Callable[[Progress], None] | None:
        watch = self.watch
        return None if watch is None else lambda progress: watch(name, progress)
