"""Settings ranked by the simulator: the engine's own scheduler serves the same requests under each of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.errors import ConfigError, PenstockError
from penstock.metrics.summary import Slo
from penstock.tools.sim.simulation import Fleet, simulate
from penstock.tools.tune.setting import DEFAULT, Setting, TunedMachine, settings, variants
from penstock.tools.workload.workload import Workload

NUM_FINALISTS = 4
KEPT_FRACTION = 0.25
"""Of the settings, those that a first, short look leaves for a longer one."""
MET = 0.97
"""Of requests: a default that serves so many in time leaves nothing to tune at this load."""
STRAINED = 0.7
"""Of requests: where settings differ, not all of them are served in time."""
FACTORS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0)
ALIKE = 0.01
"""Of the goodput: settings that differ by less are told apart by measuring alone, so one of them is enough."""


class Score(NamedTuple):
    """How a setting serves a load. More is better, goodput first."""

    good_fraction: float
    """Of all requests, those served in time; refused ones are not."""
    tokens_per_s: float
    ttft_p95_s: float
    num_preemptions: int = 0

    @property
    def rank(self) -> tuple[float, float]:
        return round(self.good_fraction, 4), self.tokens_per_s

    def is_like(self, other: "Score") -> bool:
        return (
            abs(self.good_fraction - other.good_fraction) < ALIKE
            and abs(self.tokens_per_s - other.tokens_per_s) < ALIKE * max(self.tokens_per_s, 1e-9)
            and abs(self.ttft_p95_s - other.ttft_p95_s) < 5 * ALIKE * max(self.ttft_p95_s, 1e-9)
        )


class Ranked(NamedTuple):
    setting: Setting
    score: Score
    num_loads: int
    """Requests that it was simulated with: scores of as many can be compared."""


FleetMaker = Callable[[Setting], Fleet]
Loads = Sequence[Workload]
"""The same load with other draws: what one of them decides may be chance."""


def score(fleet: Fleet, loads: Loads, slo: Slo) -> Score:
    """Over all of the loads together."""
    results = [simulate(fleet, load, slo) for load in loads]
    summaries = [result.summary for result in results]
    total = sum(one.num_requests for one in summaries) or 1
    duration_s = sum(one.duration_s for one in summaries) or 1e-9
    return Score(
        good_fraction=sum(one.good_fraction * one.num_requests for one in summaries) / total,
        tokens_per_s=sum(one.num_output_tokens for one in summaries) / duration_s,
        ttft_p95_s=max(one.ttft.p95 for one in summaries),
        num_preemptions=sum(result.num_preemptions for result in results),
    )


@dataclass(frozen=True, slots=True)
class SettingSearch:
    fleet_of: FleetMaker
    slo: Slo
    machine: TunedMachine
    show: Callable[[int, int], None] = lambda done, total: None
    """Told how many of how many are simulated."""
    each: Callable[[Callable[[Setting], Score | None], Iterable[Setting]], Iterable[Score | None]] = map
    """Calls a function for each of the settings: `map`, or what does it on several processors."""

    def strained(self, loads_at: Callable[[float], Loads]) -> float:
        """How many times the load there must be before the default fails some requests: 1 where it does as it is."""
        fleet = self.fleet_of(DEFAULT)
        if score(fleet, loads_at(1.0), self.slo).good_fraction < MET:
            return 1.0
        for factor in FACTORS:
            if score(fleet, loads_at(factor), self.slo).good_fraction < STRAINED:
                return factor
        return FACTORS[-1]

    def run(self, loads: Loads) -> list[Ranked]:
        """All settings, the best first. Most are seen with the first load alone."""
        tried = settings(self.machine)
        first = self._scores(tried, loads[:1], len(tried))
        kept = [one.setting for one in first[: max(int(KEPT_FRACTION * len(first)), NUM_FINALISTS)]]
        kept += [one for one in variants(kept[:NUM_FINALISTS], self.machine) if one not in kept]
        if DEFAULT not in kept:
            kept.append(DEFAULT)
        longer = self._scores(kept, loads, len(tried) + len(kept))
        seen = {one.setting for one in longer}
        return [*longer, *(one for one in first if one.setting not in seen)]

    def _scores(self, tried: Sequence[Setting], loads: Loads, total: int) -> list[Ranked]:
        def look(setting: Setting) -> Score | None:
            try:
                return score(self.fleet_of(setting), loads, self.slo)
            except ConfigError:
                return None  # it does not fit this machine

        found = []
        for number, (setting, one) in enumerate(zip(tried, self.each(look, tried), strict=True)):
            self.show(number, total)
            if one is not None:
                found.append(Ranked(setting, one, len(loads)))
        return sorted(found, key=_rank, reverse=True)


def _rank(one: Ranked) -> tuple[tuple[float, float], int]:
    """Of equally good ones that which changes least comes first."""
    good, tokens_per_s = one.score.rank
    return (good, round(tokens_per_s, 1)), -len(one.setting.changes)


def finalists(ranked: Sequence[Ranked], count: int = NUM_FINALISTS) -> list[Ranked]:
    """The best that differ in what they do, none of them the default."""
    default = next((one for one in ranked if one.setting == DEFAULT), None)
    if default is None:
        raise PenstockError("the default setting could not be simulated")
    chosen: list[Ranked] = []
    for one in ranked:
        if one.num_loads < default.num_loads or one.score.rank <= default.score.rank:
            break  # in order: no better one follows
        if one.score.is_like(default.score):
            continue
        if not any(one.score.is_like(other.score) for other in chosen):
            chosen.append(one)
        if len(chosen) == count:
            break
    return chosen


def shares(best: Setting, fleet_of: FleetMaker, loads: Loads, slo: Slo) -> dict[str, float]:
    """What each change is worth: by how much the simulated share of good requests falls when it alone is undone."""
    whole = score(fleet_of(best), loads, slo).good_fraction
    found = {}
    for name in best.changes:
        without = replace(best, **{name: getattr(DEFAULT, name)})
        try:
            found[name] = whole - score(fleet_of(without), loads, slo).good_fraction
        except ConfigError:
            continue  # the others are not possible without it
    return found
