"""From a model and a demand to a plan: explore, prune by the bound, simulate the few that are left, rank, ask what if.

It knows no clock, command or file; a function says what can be launched today.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import ConfigError
from penstock.tools.planner.apart import judge_apart, try_apart
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.capacity import Capacity, CapacityTrial, Loads, find_capacity, serve
from penstock.tools.planner.constraint import Constraint, find_constraint
from penstock.tools.planner.demand import Demand, SloTarget
from penstock.tools.planner.fit import Fit, fit_of
from penstock.tools.planner.money import Assumptions, SelfHost, TokenPrice, prompt_time_share, self_host, token_price
from penstock.tools.planner.space import Found, Rejected, SearchSpace
from penstock.tools.planner.steady import Steady

SIMULATED = 4
"""Candidates that are simulated."""
PER_HARDWARE = 2
EXPECTED = 0.9
"""Share of its bound that a candidate is expected to carry."""


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate with what it carries and costs."""

    candidate: Candidate
    fit: Fit
    steady: Steady
    capacity: Capacity
    """Of one copy."""
    num_replicas: int
    """Copies that carry the asked load; 0 if none could."""
    replica_hourly: float | None
    """Dollars; None where no price is known."""
    price: TokenPrice | None
    gaps: tuple[str, ...]
    """What the engine lacks to run it today."""

    @property
    def replica_rate(self) -> float:
        return self.capacity.rate * self.candidate.num_copies

    @property
    def num_devices(self) -> int:
        return self.num_replicas * self.candidate.num_devices

    @property
    def hourly(self) -> float | None:
        return None if self.replica_hourly is None else self.num_replicas * self.replica_hourly


@dataclass(frozen=True, slots=True)
class Point:
    """One load of one option: what the devices give and what a user gets."""

    name: str
    rate: float
    tokens_per_s_per_device: float
    tokens_per_s_per_user: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    words: str
    run: CapacityTrial | None
    is_met: bool
    consequence: str


@dataclass(frozen=True, slots=True)
class Plan:
    demand: Demand
    target: SloTarget
    options: tuple[Option, ...]
    """Ranked: those that carry the load for the least money, or the fewest devices, first. The chosen one is measured more
    finely than the rest."""
    rejected: tuple[Rejected, ...]
    num_bounded: int
    """Candidates that fit, most of them judged by their bound alone."""
    chosen: Option | None
    """The best that can be launched today, or the best of all if none can."""
    constraint: Constraint | None = None
    remedy: Option | None = None
    at_load: CapacityTrial | None = None
    what_ifs: tuple[WhatIf, ...] = ()
    pareto: tuple[Point, ...] = ()
    cost: SelfHost | None = None


@dataclass(frozen=True)
class Search:
    """The inputs of a search besides model and demand. Prices are dollars an hour, by device."""

    target: SloTarget
    search_space: SearchSpace
    prices: Mapping[str, float]
    assumed: Assumptions
    gaps_of: Callable[[Candidate], tuple[str, ...]]
    on_run: Callable[[str], None] = lambda words: None
    _loads: dict[tuple[object, ...], Loads] = field(default_factory=dict)
    """Runs so far, by candidate: what was simulated once is not simulated again."""

    def plan(self, found: Sequence[Found], rejected: Sequence[Rejected], demand: Demand) -> Plan:
        """`found` are candidates that fit."""
        options = [self.evaluate(one.candidate, one.steady, demand) for one in self.shortlist(found, demand)]
        options.sort(key=self._rank)
        plan = Plan(demand, self.target, tuple(options), tuple(rejected), len(found), None)
        if not options:
            return plan
        able = [option for option in options if option.num_replicas] or options
        chosen = next((option for option in able if not option.gaps), able[0])
        return self._detail(plan, chosen)

    def shortlist(self, found: Sequence[Found], demand: Demand) -> list[Found]:
        """The cheapest by their bound, some of every device, the cheapest of every weight format that was asked for, and the
        cheapest that can be launched.
        """
        ordered = sorted(found, key=lambda one: (self._expected_cost(one, demand), -one.steady.rate))
        kept: list[Found] = []
        for one in ordered:
            alike = [other for other in kept if other.candidate.hardware.name == one.candidate.hardware.name]
            if len(kept) < SIMULATED and len(alike) < PER_HARDWARE:
                kept.append(one)
        for one in ordered:
            if all(one.candidate.weights != other.candidate.weights for other in kept):
                kept.append(one)
        ready = next((one for one in ordered if not self.gaps_of(one.candidate)), None)
        if ready is not None and not any(not self.gaps_of(one.candidate) for one in kept):
            kept.append(ready)
        return kept

    def evaluate(self, candidate: Candidate, steady: Steady, demand: Demand, *, finely: bool = False) -> Option:
        if candidate.key not in self._loads:
            self._loads[candidate.key] = Loads(candidate, demand, self.target, lambda: self.on_run(candidate.name))
        loads = self._loads[candidate.key]
        capacity = find_capacity(loads, 1) if finely else find_capacity(loads)
        replica_rate = capacity.rate * candidate.num_copies
        each = self.prices.get(candidate.hardware.name)
        hourly = None if each is None else each * candidate.num_devices
        price = None
        if hourly is not None and capacity.at is not None:
            running = capacity.rate * capacity.at.summary.e2e.mean
            share = prompt_time_share(candidate.step_cost, demand.sizes, running, candidate.max_batch_tokens)
            price = token_price(hourly, replica_rate, demand.sizes, share)
        return Option(
            candidate=candidate,
            fit=fit_of(candidate, demand.sizes),
            steady=steady,
            capacity=capacity,
            num_replicas=math.ceil(demand.rate / replica_rate) if replica_rate else 0,
            replica_hourly=hourly,
            price=price,
            gaps=self.gaps_of(candidate),
        )

    def _detail(self, plan: Plan, option: Option) -> Plan:
        """What is reported of the chosen option alone."""
        demand = plan.demand
        if option.capacity.at is not None:
            option = self.evaluate(option.candidate, option.steady, demand, finely=True)
        constraint = find_constraint(option.candidate, option.capacity, option.steady, demand.sizes, self.target)
        remedy = None
        if constraint.remedy is not None:
            try:
                remedy = self.evaluate(constraint.remedy, option.steady, demand)
            except ConfigError:
                remedy = None
        options = tuple(option if one.candidate.key == option.candidate.key else one for one in plan.options)
        found = replace(plan, options=options, chosen=option, constraint=constraint, remedy=remedy)
        plan = replace(found, pareto=_pareto(options, demand))
        if not option.num_replicas:
            return plan
        cost = None
        if option.replica_hourly is not None:
            cost = self_host(
                rate=demand.rate, replica_rate=option.replica_rate, replica_hourly=option.replica_hourly,
                sizes=demand.sizes, assumed=self.assumed, num_cached=demand.mean_repeated,
            )  # fmt: skip
        at_load = self._serve(option, demand)
        return replace(plan, at_load=at_load, what_ifs=self._what_ifs(option, demand, at_load), cost=cost)

    def _serve(self, option: Option, demand: Demand, num_replicas: int | None = None) -> CapacityTrial:
        self.on_run(option.candidate.name)
        count = (num_replicas or option.num_replicas) * option.candidate.num_copies
        return serve(option.candidate, demand, self.target, demand.rate, count)

    def _what_ifs(self, option: Option, demand: Demand, at_load: CapacityTrial) -> tuple[WhatIf, ...]:
        def judged(words: str, run: CapacityTrial | None, consequence: str = "") -> WhatIf:
            is_met = run is not None and run.good_fraction >= self.target.fraction
            return WhatIf(words, run, is_met, consequence)

        needed = math.ceil(2 * demand.rate / option.replica_rate)
        more = "" if needed <= option.num_replicas else f"needs {needed} replicas"
        found = [judged("twice the traffic", self._serve(option, demand.at(2.0)), more)]
        group = option.candidate.num_devices
        if option.num_replicas == 1:
            found.append(judged("one device less", None, "nothing is left to serve"))
        else:
            lost = "" if group == 1 else f"a replica of {group} devices goes with it"
            found.append(judged("one device less", self._serve(option, demand, option.num_replicas - 1), lost))
        cold = replace(option, candidate=replace(option.candidate, prefix_caching=False))
        has_hits = at_load.summary.num_cached_tokens > 0
        found.append(judged("no cache hits", self._serve(cold, demand) if has_hits else at_load))
        longer = demand.longer(2.0)
        if longer.sizes.largest_total > min(option.fit.num_tokens, option.candidate.sizing.max_context):
            found.append(judged("prompts twice as long", None, "the longest no longer fit the context or the cache"))
        else:
            found.append(judged("prompts twice as long", self._serve(option, longer)))
        num_copies = option.num_replicas * option.candidate.num_copies
        best = try_apart(option.candidate, demand, self.target, num_copies) if option.candidate.prefix_caching else None
        if best is None:
            found.append(judged("prompts computed apart", at_load, "does not pay: there is nothing to split"))
        else:
            words = f"{best[0]} of {num_copies} engines compute prompts alone"
            found.append(judged(words, best[1], judge_apart(best[1], at_load)))
        return tuple(found)

    def _expected_cost(self, one: Found, demand: Demand) -> float:
        rate = EXPECTED * one.steady.rate * one.candidate.num_copies
        if not rate:
            return math.inf
        return math.ceil(demand.rate / rate) * self._device_cost(one.candidate) * one.candidate.num_devices

    def _device_cost(self, candidate: Candidate) -> float:
        """In dollars where every device has a price, else in devices."""
        if all(hardware.name in self.prices for hardware in self.search_space.hardware):
            return self.prices[candidate.hardware.name]
        return 1.0

    def _rank(self, option: Option) -> tuple[float, int, float]:
        """Cheapest fleet first; among equals what runs today, then the one with the most room."""
        if not option.num_replicas:
            return math.inf, 0, 0.0
        cost = self._device_cost(option.candidate) * option.num_devices
        return cost, len(option.gaps), -option.replica_rate * option.num_replicas


def _pareto(options: Sequence[Option], demand: Demand) -> tuple[Point, ...]:
    """Loads that were simulated and met the target, without those that another beats in both respects."""
    points = []
    for option in options:
        for run in option.capacity.runs:
            tpot_s = run.summary.tpot.p50
            if option.capacity.rate / 16 <= run.rate <= option.capacity.rate and tpot_s > 0.0:
                tokens = run.rate * option.candidate.num_copies * demand.sizes.mean_answer
                per_device = tokens / option.candidate.num_devices
                points.append(Point(option.candidate.name, run.rate, per_device, 1.0 / tpot_s))
    best: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.tokens_per_s_per_device, -each.tokens_per_s_per_user)):
        if not best or point.tokens_per_s_per_user > best[-1].tokens_per_s_per_user:
            best.append(point)
    return tuple(best)
