"""The highest rate at which enough requests still meet the SLO, found by bisection over the simulator.

Rates lie on a grid of fractions of an octave, so that two candidates, two SLOs or two runs meet the very same loads and their
answers can be compared. A run starts warm, and the first part of its arrivals is not judged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.metrics.summary import Summary, summarize
from penstock.metrics.timeline import Timeline
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.demand import Demand, SloTarget
from penstock.tools.planner.steady import Steady, bound, num_inside
from penstock.tools.planner.warm import warm_start
from penstock.tools.sim.handover import Disaggregation
from penstock.tools.sim.simulation import Result, simulate

PER_OCTAVE = 32
"""Neighbouring rates are 2.2 % apart."""
COARSE = 4
"""Grid steps of a first search: 9 %."""
LOWEST = -10 * PER_OCTAVE
"""A request in a quarter of an hour; what cannot be met there is called impossible."""
BOUND_SLACK = 1.02
"""Rates above the steady bound by more than this are not tried: a short run could not tell that its queue never ends."""
FIRST_TRY = 0.97
"""Of the bound."""
WARM_UP_FRACTION = 0.2
MIN_REQUESTS, MAX_REQUESTS = 240, 1000
MOST_LEAD = 0.5
"""Share of a run that conversations may take to fill a fleet: runs are as long as that asks, but no more than
`LONGEST_TALK` times as long as others."""
LONGEST_TALK = 4
TURNOVERS = 2.0
"""How many times the requests inside are replaced in a run."""


@dataclass(frozen=True, slots=True)
class CapacityTrial:
    """One simulated load."""

    rate: float
    num_copies: int
    good_fraction: float
    """Of the requests that are judged."""
    late_ttft_fraction: float
    late_tpot_fraction: float
    summary: Summary
    """Of the requests that are judged."""
    result: Result
    """Of all that happened, warm-up included."""
    start_s: float
    """When judging began."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one copy of the model."""

    rate: float
    """Requests a second; 0 if the SLO is missed however few come."""
    at: CapacityTrial | None
    """The run at that rate."""
    beyond: CapacityTrial | None
    """The run just above, which misses the target; None if the bound ended the search."""
    runs: tuple[CapacityTrial, ...]
    """All that were simulated, by rate."""


def grid_rate(index: int) -> float:
    return float(2.0 ** (index / PER_OCTAVE))


class Loads:
    """Runs of one candidate under one demand, each simulated once."""

    def __init__(self, candidate: Candidate, demand: Demand, target: SloTarget, on_run: Callable[[], None]) -> None:
        self._candidate = candidate
        self._demand = demand
        self._target = target
        self._on_run = on_run
        self._runs: dict[int, CapacityTrial] = {}
        self.steady: Steady = bound(candidate, demand.sizes, target.slo, demand.mean_repeated)

    @property
    def runs(self) -> tuple[CapacityTrial, ...]:
        return tuple(self._runs[index] for index in sorted(self._runs))

    def run(self, index: int) -> CapacityTrial:
        if index not in self._runs:
            self._runs[index] = serve(self._candidate, self._demand, self._target, grid_rate(index), 1)
            self._on_run()
        return self._runs[index]

    def is_thinkable(self, index: int) -> bool:
        return grid_rate(index) <= BOUND_SLACK * self.steady.rate

    def passes(self, index: int) -> bool:
        return self.is_thinkable(index) and self.run(index).good_fraction >= self._target.fraction


def serve(
    candidate: Candidate,
    demand: Demand,
    target: SloTarget,
    rate: float,
    num_copies: int,
    split: Disaggregation | None = None,
) -> CapacityTrial:
    """Simulate so many copies under a rate; with a split, some of them compute prompts alone."""
    inside = num_copies * num_inside(candidate, demand.sizes, rate / num_copies, demand.mean_repeated)
    talk_s = 0.0  # from a first turn to the last, by Little's law
    if demand.conversation is not None:
        talk_s = (demand.num_turns - 1) * (demand.conversation.think_s + inside / rate)
    num_requests = run_length(demand, num_copies, inside, rate * talk_s / MOST_LEAD)
    plain = demand.workload(rate, num_requests, candidate.spec.vocab_size)
    warm = warm_start(candidate, demand, plain, rate, num_copies)
    slo = target.slo
    fleet = candidate.fleet(num_copies)
    if split is not None:
        fleet = replace(fleet, num_replicas=num_copies - split.num_prefill, split=split)
    result = simulate(fleet, warm.workload, slo)
    # Conversations fill a fleet until the first of them have ended, and empty it when no more begin.
    start_s = warm.start_s + max(WARM_UP_FRACTION * plain.span_s, min(talk_s, MOST_LEAD * plain.span_s))
    end_s = warm.start_s + plain.span_s if demand.num_turns > 1 else math.inf
    judged = [timeline for timeline in result.timelines if start_s <= timeline.arrival_s <= end_s]
    duration_s = max(timeline.end_s or 0.0 for timeline in judged) - start_s

    def late(time: Callable[[Timeline], float | None], allowed: float | None) -> float:
        if allowed is None:
            return 0.0
        return sum((time(one) or 0.0) > allowed for one in judged) / len(judged)

    summary = summarize(judged, duration_s, slo)
    return CapacityTrial(
        rate=rate,
        num_copies=num_copies,
        good_fraction=summary.good_fraction,
        late_ttft_fraction=late(lambda one: one.ttft_s, slo.ttft_s),
        late_tpot_fraction=late(lambda one: one.tpot_s, slo.tpot_s),
        summary=summary,
        result=result,
        start_s=start_s,
    )


def run_length(demand: Demand, num_copies: int, inside: int, talked: float) -> int:
    """Requests enough to replace those inside, and `talked` for conversations to fill a fleet."""
    least, most = (count * math.sqrt(num_copies) for count in (MIN_REQUESTS, MAX_REQUESTS))
    wanted = round(min(max(TURNOVERS * inside, least), most))
    wanted = round(max(wanted, min(talked, LONGEST_TALK * most)))
    return min(wanted, len(demand.trace) if demand.trace else wanted)


def find_capacity(loads: Loads, finest: int = COARSE) -> Capacity:
    """Gallop from what the bound suggests, then bisect down to `finest` grid steps."""
    if not loads.steady.rate:
        return Capacity(0.0, None, None, ())
    index = PER_OCTAVE * math.log2(FIRST_TRY * loads.steady.rate)
    start = max(LOWEST, math.floor(index / COARSE) * COARSE)
    low, high = _bracket(loads, start)
    while high - low > finest and low >= LOWEST:
        middle = low + max(finest, (high - low) // 2 // finest * finest)
        if loads.passes(middle):
            low = middle
        else:
            high = middle
    at = loads.run(low) if low >= LOWEST else None
    beyond = loads.run(high) if loads.is_thinkable(high) else None
    return Capacity(grid_rate(low) if at else 0.0, at, beyond, loads.runs)


def _bracket(loads: Loads, start: int) -> tuple[int, int]:
    """A rate that passes and one that does not; the first is below the grid if nothing passes."""
    stride = COARSE
    if loads.passes(start):
        low = start
        while loads.passes(low + stride):
            low, stride = low + stride, 2 * stride
        return low, low + stride
    high = start
    while high > LOWEST:
        lower = max(LOWEST, high - stride)
        if loads.passes(lower):
            return lower, high
        high, stride = lower, 3 * stride
    return LOWEST - COARSE, LOWEST
