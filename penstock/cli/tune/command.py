"""`penstock tune`: profile, search, contest, evidence.

Puts the parts of `penstock.tools.tune` together; they are imported when the command runs.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import uvloop

from penstock.cli.bench.config import parse_slo
from penstock.cli.tune.calibrate import anchored, profile_live
from penstock.cli.tune.config import Config, TuneLoad
from penstock.cli.tune.forks import forked_scores
from penstock.cli.tune.kept import keep, tuned_path
from penstock.cli.tune.kernels import run as run_kernels
from penstock.cli.tune.live import NUM_FIRST_ROUNDS, NUM_LAST, LiveContest, LiveServer
from penstock.config import EngineConfig
from penstock.console.files import check_writable
from penstock.console.show import print_table, printable
from penstock.errors import ConfigError
from penstock.metrics.summary import Summary
from penstock.runtime.sizing import Sizing
from penstock.tools.bench.plan import TrafficPlan, plan_of_recipe, plan_of_trace
from penstock.tools.cost.layout import Layout
from penstock.tools.cost.measured.profile import Profile
from penstock.tools.cost.measured.ramps import MeasuredCost
from penstock.tools.measure.profiles import cost_of, measured_sizing, open_profile, versions
from penstock.tools.measure.this_machine import machine_facts
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.tune.evidence import TriedSetting, Tuned
from penstock.tools.tune.search import Loads, Ranked, SettingSearch, finalists, score, shares
from penstock.tools.tune.setting import DEFAULT, Setting, TunedMachine, flags_in_words, unsimulated
from penstock.tools.tune.turns import LEAST_ROUNDS, NOISY_SPREAD, kendall_tau
from penstock.tools.workload.trace import Trace
from penstock.tools.workload.trace_files import read
from penstock.tools.workload.workload import Recipe

PROFILE_SHARE, MOST_PROFILE_S = 0.08, 45.0
CALIBRATION_RATE = 20.0
"""Of requests that users choose from while steps are measured, a second."""
RUN_SHARE = 1 / 32
"""Of all the time, what one run takes: a default and four contenders, five rounds, their start and what comes before."""
RUN_S = (4.0, 40.0)
START_S, BETWEEN_S, NUM_LAST_ROUNDS = 20.0, 1.0, 2
"""What servers take to start, what passes between two runs, and the rounds that there is time for with the best."""
LEAST_REQUESTS, MOST_REQUESTS = 16, 400
NUM_LOADS = 3
NOISY_FRACTION = 0.1
"""Of the machine: what others may use before it is said."""
SERVER_BYTES = 1 << 30
"""What a server takes beside weights and cache."""
NO_MEMORY = "1GiB"
"""Where an engine holds nothing, any number."""
SHARED_FRACTION = 0.85
"""Of free memory, what servers that run at once may take together."""


def run(config: Config) -> int:
    check_writable(config.out)
    if config.kernels:
        return run_kernels(config)
    tuned = Tuning(config).run()
    path = config.out or tuned_path(config.model.model)
    keep(path, tuned)
    if config.json:
        print(tuned.to_json(), end="")
    else:
        report(tuned, path)
    return 0


@dataclass(frozen=True)
class TunedLoad:
    """The load as flags give it, at any multiple of its rate, for a run of so many seconds."""

    asked: TuneLoad
    rate: float
    run_s: float
    vocab_size: int

    @cached_property
    def trace(self) -> Trace | None:
        return None if self.asked.trace is None else read(self.asked.trace)

    def recipe(self, factor: float) -> Recipe:
        asked, rate = self.asked, self.rate * factor
        num_requests = min(max(round(rate * self.run_s), LEAST_REQUESTS), MOST_REQUESTS)
        prefix = asked.prefix(asked.num_prefixes)
        return asked.recipe_at(rate, num_requests, prefix=prefix, vocab_size=self.vocab_size)

    def part(self, factor: float, number: int) -> Trace:
        """A stretch of the trace as long as a run, another one for each number; round again at its end."""
        if self.trace is None:
            raise ConfigError("there is no trace to take a part of")
        faster = self.trace.faster(factor)
        num_parts = max(int(faster.span_s // self.run_s), 1)
        start_s = (number % num_parts) * self.run_s
        part = faster if num_parts == 1 else faster.window(start_s, start_s + self.run_s)
        return part.first(MOST_REQUESTS)

    def loads(self, factor: float) -> Loads:
        if self.trace is not None:
            return [self.part(factor, number).workload(self.vocab_size) for number in range(NUM_LOADS)]
        return [self.recipe(factor).make(self.asked.seed + number) for number in range(NUM_LOADS)]

    def plan(self, factor: float, number: int, name: str) -> TrafficPlan:
        if self.trace is not None:
            return plan_of_trace(self.part(factor, number), name)
        return plan_of_recipe(self.recipe(factor), self.asked.seed + number, name)

    def words(self, factor: float) -> str:
        times = "" if factor == 1.0 else f" at {factor:g} times its rate, where the default misses some"
        if self.trace is not None and self.asked.trace is not None:
            return f"{self.asked.trace.name}{times}"
        asked = self.asked
        shared = f", {asked.shared_prefix:,} shared" if asked.shared_prefix else ""
        return f"{self.rate * factor:.3g} requests/s, prompts of {asked.prompts}{shared}, answers of {asked.answers}"


class Tuning:
    """One run of the command."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.slo = parse_slo(config.slo)
        self.begin_s = time.monotonic()
        self.end_s = self.begin_s + 60.0 * config.minutes
        self.base = EngineConfig(model=config.model)
        self.profile: Profile
        self._costs: dict[tuple[int, int], MeasuredCost] = {}
        """Its costs, by replicas and ranks: what one simulation has worked out serves the others."""

    def run(self) -> Tuned:
        run_s = min(max(RUN_SHARE * 60.0 * self.config.minutes, RUN_S[0]), RUN_S[1])
        self._take(self._measured(run_s))
        machine = self._machine()
        load = TunedLoad(self.config.load, self._rate(), run_s, self.profile.vocab_size)
        search = SettingSearch(self._fleet, self.slo, machine, self._show_search, forked_scores)
        begin_s = time.monotonic()
        factor = search.strained(load.loads)
        loads = load.loads(factor)
        ranked = search.run(loads)
        simulated_s = time.monotonic() - begin_s
        chosen = finalists(ranked)
        self._show(f"{len(ranked)} settings simulated in {simulated_s:.1f} s; {len(chosen)} better than the default")
        best = chosen[0].setting if chosen else ranked[0].setting
        swaps = next(one for one in ranked if one.setting == DEFAULT).score.num_preemptions > 0
        further = unsimulated(best, machine, speculates=not machine.is_gpu, lossy=self.config.lossy, swaps=swaps)
        count = self._num_contenders(max(simulate(self._fleet(DEFAULT), one).summary.duration_s for one in loads))
        settings = [*(one.setting for one in chosen[: max(count - len(further), 1)]), *further]
        contest = self._contest(settings, load, factor, machine.measured)
        winner = next((one for one in settings if one.label == contest.contest.winner), None)
        found = self._tuned(load.words(factor), ranked, settings, contest, winner)
        worth = {} if winner is None else shares(winner, self._fleet, loads, self.slo)
        return replace(found, simulated_s=simulated_s, shares=worth)

    def _num_contenders(self, run_s: float) -> int:
        """As many as the time left lets be measured often enough, if a run takes so long."""
        runs = (self.end_s - time.monotonic() - START_S) / (run_s + BETWEEN_S)
        first = runs - NUM_LAST_ROUNDS * (1 + NUM_LAST)
        return min(max(int(first / NUM_FIRST_ROUNDS) - 1, 1), 4)

    def _take(self, profile: Profile) -> None:
        self.profile = profile
        self._costs.clear()

    def _measured(self, run_s: float) -> Profile:
        if self.config.profile is not None:
            return open_profile(self.config.profile)
        seconds = min(MOST_PROFILE_S, PROFILE_SHARE * 60.0 * self.config.minutes)
        self._show(f"measuring steps for {seconds:.0f} s")
        is_gpu = self.config.model.device != "cpu" and bool(machine_facts()["gpus"])
        asked = self.config.load
        load = TunedLoad(asked, asked.rate or CALIBRATION_RATE, run_s, 1)
        profile, summary = profile_live(self.config.model, lambda name: load.plan(1.0, 0, name), seconds, is_gpu=is_gpu)
        if asked.rate is None and asked.trace is None:
            return profile
        sent = replace(load, vocab_size=profile.vocab_size).loads(1.0)[0]

        def simulated(one: Profile) -> Summary:
            self._take(one)
            return simulate(self._fleet(DEFAULT), sent).summary

        return anchored(profile, summary, simulated)

    def _machine(self) -> TunedMachine:
        profile = self.profile
        facts, sizing = profile.machine, measured_sizing(profile)
        is_gpu = bool(facts.get("gpus")) and self.config.model.device != "cpu"
        processors, gpus = int(facts.get("num_processors", 1)), len(facts.get("gpus", ()))
        has_link = bool(profile.all_reduce) and not is_gpu
        return TunedMachine(is_gpu, processors, gpus, sizing.max_context, sizing, has_link)

    def _fleet(self, setting: Setting) -> Fleet:
        """Slow moments are left out: they would be the same for all. Replicas on one processor share it."""
        profile, key = self.profile, (setting.replicas, setting.tensor)
        if key not in self._costs:
            is_shared = setting.replicas > 1 and not profile.machine.get("gpus")
            fitted = profile.fitted.slower(float(setting.replicas)) if is_shared else profile.fitted
            even = replace(profile, fitted=replace(fitted, slowdowns=()))
            self._costs[key] = cost_of(even, Layout(tensor=setting.tensor))
        engine = setting.engine(self.base)
        sizing = setting.sizing(measured_sizing(profile))
        return Fleet(engine, sizing, self._costs[key], num_replicas=setting.replicas, depth=profile.depth)

    def _rate(self) -> float:
        """As asked, or half of what the engine does at most."""
        if self.config.load.rate is not None or self.config.load.trace is not None:
            return self.config.load.rate or 1.0
        load = TunedLoad(self.config.load, 100.0, 1.0, self.profile.vocab_size)
        at_once = replace(load.recipe(1.0), num_requests=64).make(self.config.load.seed)
        requests = [replace(one, arrival_s=0.0) for one in at_once.requests]
        return max(0.5 * simulate(self._fleet(DEFAULT), requests).summary.requests_per_s, 0.01)

    def _is_like_with(self, room: str, settings: Sequence[Setting], loads: Loads) -> bool:
        """Whether servers that share the memory serve this load as each would with all of it."""
        if not room:
            return False
        pairs = ((one, replace(one, kv_memory=one.kv_memory or room)) for one in settings)
        found = [[score(self._fleet(each), loads[:1], self.slo) for each in pair] for pair in pairs]
        return all(alone.is_like(beside) for alone, beside in found)

    def _contest(self, settings: Sequence[Setting], load: TunedLoad, factor: float, measured: Sizing) -> LiveContest:
        taking = (DEFAULT, *settings)
        room = room_for(measured, taking)
        if not self._is_like_with(room, taking, load.loads(factor)):
            room = ""
        servers = [LiveServer(one, self.config.model, room) for one in taking]
        contest = LiveContest(servers, partial(load.plan, factor), self.slo, bool(room), self._show)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(contest.run(self.end_s))
        return contest

    def _tuned(
        self,
        load: str,
        ranked: Sequence[Ranked],
        settings: Sequence[Setting],
        live: LiveContest,
        winner: Setting | None,
    ) -> Tuned:
        predicted = {one.setting: one.score.good_fraction for one in ranked}
        means = {name: sum(values) / len(values) for name, values in live.good.items()}
        as_simulated = [replace(one, speculate=None) for one in settings]  # which knows no drafts either way
        tried = [
            TriedSetting.of(one, predicted.get(same), means.get(one.label), live.contest.gain(one.label))
            for one, same in zip(settings, as_simulated, strict=True)
        ]
        both = [one for one in tried if one.predicted is not None and one.measured is not None]
        default = next((one.score.good_fraction for one in ranked if not one.setting.changes), 0.0)
        tau = kendall_tau(
            [default, *(one.predicted or 0.0 for one in both)],
            [means.get("default", 0.0), *(one.measured or 0.0 for one in both)],
        )
        return Tuned(
            model=self.config.model.model,
            machine=machine_facts(),
            versions=versions(),
            when=time.strftime("%Y-%m-%d %H:%M"),
            slo=self.config.slo,
            load=load,
            winner=None if winner is None else tried[settings.index(winner)],
            default_good=means.get("default"),
            tried=tried,
            num_simulated=len(ranked),
            simulated_s=0.0,
            measured_s=time.monotonic() - self.begin_s,
            default_predicted=default,
            tau=tau,
            doubts=doubts_of(live),
        )

    def _show(self, words: str) -> None:
        left_s = max(self.end_s - time.monotonic(), 0.0)
        print(f"penstock: {words}; {left_s:.0f} s left", file=sys.stderr)

    def _show_search(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\rpenstock: simulating {done} of {total} ", end="", file=sys.stderr, flush=True)


def room_for(measured: Sizing, settings: Sequence[Setting]) -> str:
    """Cache that each has if servers of all of them run at once; nothing where the machine is too small for that."""
    if not measured.free_bytes:
        return NO_MEMORY
    share = int(SHARED_FRACTION * measured.free_bytes) // len(settings)
    room = share - measured.weight_bytes - measured.workspace_bytes - SERVER_BYTES
    most = max(one.sizing(measured).kv_bytes for one in settings)
    longest = measured.max_context * measured.block_bytes // measured.block_size
    asked = [one.sizing(measured).kv_bytes for one in settings if one.kv_memory]
    return f"{min(room, most) >> 20}MiB" if room >= max(min(longest, most), *asked, 1) else ""


def doubts_of(live: LiveContest) -> list[str]:
    """Why what was measured may not hold."""
    found = list(live.doubts)
    idle = sorted(live.idle_fractions)
    others = idle[len(idle) // 2] if idle else 0.0
    if others > NOISY_FRACTION:
        found.append(
            f"other programs used {100 * others:.0f} % of this machine between runs; tune again when it is quiet"
        )
    if live.contest.spread > NOISY_SPREAD:
        found.append(
            f"the default's own rounds differ by {100 * live.contest.spread:.0f} %: a noisy machine, or short runs"
        )
    if len(live.contest.rounds) < LEAST_ROUNDS:
        found.append(f"only {len(live.contest.rounds)} rounds fitted into the time; give more --minutes")
    return found


def report(tuned: Tuned, path: Path) -> None:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    print(f"load        {printable(tuned.load)}; {tuned.slo}")
    print(f"simulated   {tuned.num_simulated} settings in {tuned.simulated_s:.1f} s, {tuned.measured_s:.0f} s in all")
    rows: list[tuple[Any, ...]] = [("default", percent(tuned.default_predicted), percent(tuned.default_good), "")]
    for one in tuned.tried:
        rows.append((flags_in_words(one.changes), percent(one.predicted), percent(one.measured), one.words))
    print_table(("served in time", "simulated", "measured", "against the default"), rows)
    if tuned.tau is not None:
        print(f"agreement of the two rankings (Kendall's tau): {tuned.tau:+.2f}")
    for doubt in tuned.doubts:
        print(f"doubt: {printable(doubt)}")
    if tuned.winner is None:
        print("\nthe default is kept: nothing was better beyond chance")
    else:
        print(f"\ntuned: {tuned.winner.words}")
    print(f"penstock serve --config {path}")
