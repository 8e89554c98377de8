"""A whole benchmark: the server is asked what it is, warmed up, measured as often as asked, and every run is judged.

Each run sends words of its own: what one run has put into the server's cache helps no other.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from penstock.errors import ConfigError
from penstock.metrics.summary import Slo
from penstock.tools.bench.client.answer import Answer
from penstock.tools.bench.client.counters import METRICS_S, Counters, read_counters
from penstock.tools.bench.client.http import Client
from penstock.tools.bench.client.target import TargetServer
from penstock.tools.bench.knee import Knee, Trial, find_knee
from penstock.tools.bench.load import Limit, LoadProgress, LoadShape, run_plan
from penstock.tools.bench.plan import TrafficPlan
from penstock.tools.bench.report.figures import Figures, figures_of
from penstock.tools.bench.report.flags import Doubt, flags_of

WARM_UP_USERS = 4
HOPELESS_FRACTION = 0.5
"""Of requests that meet their targets one at a time: with fewer, no rate will do."""
LEAST_SHARE = 0.25
"""Of the rate that comes of one request at a time: at less, requests hardly meet each other."""
TRIAL_GRACE_S = 10.0
INTERRUPTED_S = 2.0
"""For reading the server's counters after an interrupt."""


PlanMaker = Callable[[str, float | None], TrafficPlan]
"""The plan of a run by its name and rate: equal arrivals and lengths for an equal rate, words by the name."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One measured run."""

    figures: Figures
    flags: tuple[Doubt, ...]
    answers: tuple[Answer, ...]

    @property
    def fault(self) -> str:
        """Why its figures are not the server's: the name of a doubt, or nothing."""
        return next((flag.name for flag in self.flags if flag.level == "invalid"), "")

    @property
    def is_in_vain(self) -> bool:
        """The server was gone at its end: another run would find no server."""
        return self.fault == "server-gone"

    @property
    def is_valid(self) -> bool:
        return not self.fault


@dataclass(frozen=True, slots=True)
class KneeGoal:
    slo: Slo
    attainment: float = 0.95
    """Share of requests that must meet the SLO for a rate to count as carried."""

    def is_met(self, run: BenchRun) -> bool:
        figures = run.figures
        is_whole = not (figures.is_saturated or figures.is_hopeless)
        return is_whole and figures.summary.good_fraction >= self.attainment

    def limit(self, num_requests: int) -> Limit:
        return Limit(self.slo, int((1.0 - self.attainment) * num_requests + 1e-9))


@dataclass(frozen=True, slots=True)
class Session:
    """A client bound to a target. `watch` is told what is going on."""

    client: Client
    target: TargetServer
    shape: LoadShape
    goal: KneeGoal
    make_plan: PlanMaker
    watch: Callable[[str, LoadProgress], None] | None = None

    async def warm_up(self, plan: TrafficPlan) -> None:
        """Connections are opened, caches of code and memory filled; nothing of it is counted."""
        users = min(self.shape.users or WARM_UP_USERS, max(len(plan.asks), 1))
        shape = replace(self.shape, users=users, duration_s=None)
        measured = await run_plan(self.client, self.target, plan, shape, self._watch("warming up"))
        if measured.is_interrupted:
            raise asyncio.CancelledError
        if measured.is_in_vain:
            raise ConfigError(
                f"{self.client.address.url} stopped answering while it was warmed up; ask penstock doctor what became of it"
            )

    async def measure(self, name: str, rate: float | None = None) -> BenchRun:
        return await self._run(name, self.make_plan(name, rate), self.shape, rate)

    async def _run(self, name: str, plan: TrafficPlan, shape: LoadShape, rate: float | None) -> BenchRun:
        before = await read_counters(self.client)
        measured = await run_plan(self.client, self.target, plan, shape, self._watch(name))
        patience_s = INTERRUPTED_S if measured.is_interrupted else METRICS_S
        try:
            after = Counters() if measured.is_in_vain else await read_counters(self.client, patience_s)
        except asyncio.CancelledError:  # between a run and its report: what was measured is told all the same
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            after, measured = Counters(), replace(measured, is_interrupted=True)
        figures = figures_of(measured, plan, self.target, self.goal.slo, after.since(before), rate)
        flags = flags_of(figures, is_closed=self.shape.users is not None)
        return BenchRun(figures, tuple(flags), measured.answers)

    async def find_knee(self, start: float | None, trial_s: float) -> tuple[Knee | None, list[BenchRun]]:
        """First one request at a time, for as long as a trial: where that misses its targets no rate can meet them, and the
        rate that comes of it is where the search begins, unless told. No knee where the search was interrupted before a trial.
        """
        alone = await self._trial("one at a time", None, replace(self.shape, users=1, duration_s=trial_s))
        runs = [alone]
        own_rate = alone.figures.summary.requests_per_s
        trial = Trial(own_rate, self.goal.is_met(alone), alone.fault, is_alone=True)
        if alone.figures.is_interrupted:
            return None, runs
        is_hopeless = alone.figures.summary.good_fraction < HOPELESS_FRACTION
        if is_hopeless or trial.fault not in ("", "client-bound"):
            return Knee(None, None, (trial,)), runs

        async def attempt(rate: float) -> Trial | None:
            run = await self._trial(f"rate {rate:.4g}", rate, replace(self.shape, grace_s=TRIAL_GRACE_S))
            if run.figures.is_interrupted:
                return None
            runs.append(run)
            return Trial(rate, self.goal.is_met(run), run.fault)

        knee = await find_knee(attempt, start or own_rate, least=LEAST_SHARE * min(own_rate, start or own_rate))
        return replace(knee, trials=(trial, *knee.trials)), runs

    async def _trial(self, name: str, rate: float | None, shape: LoadShape) -> BenchRun:
        """Given up once it must fail. A client that was disturbed gets a second try, with other words."""
        for words in (name, f"{name}, again"):
            plan = self.make_plan(words, rate)
            limit = None if rate is None else self.goal.limit(plan.num_requests)
            run = await self._run(words, plan, replace(shape, limit=limit), rate)
            if run.fault != "client-bound" or run.figures.is_interrupted:
                break
        return run

    def _watch(self, name: str) -> Callable[[LoadProgress], None] | None:
        return None if self.watch is None else partial(self.watch, name)
