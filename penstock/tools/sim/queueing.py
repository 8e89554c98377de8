"""A run as a queue: the offered rate, the fleet's capacity, how many requests were inside, and whether the queue was
stable.

rho = offered rate / capacity, and capacity is the rate at which the same replicas end requests when some always wait. A
device that computes all the time may be at a quarter of it: a step with one sequence takes nearly as long as one with many.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from penstock.metrics.timeline import Timeline
from penstock.runtime.core.request import Request
from penstock.tools.sim.simulation import Fleet, Result, simulate
from penstock.tools.workload.workload import Workload

MOST_PROBED = 2048
"""Requests by which a capacity is measured."""
GROWTH = 1.25
LEAST_GROWTH = 4.0
"""A queue grows if in the last quarter of arrivals it is so many times, and so many requests, longer than in the one before.
Where more is offered than can be carried, being longer at all says as much."""
UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether the queue had stopped growing when the last request came."""

    is_stable: bool
    waiting_before: float
    """Requests without a first token, on average over the third quarter of arrivals."""
    waiting_last: float
    """Likewise over the last quarter."""
    refused_last: int
    """Requests refused among the last quarter to arrive."""


@dataclass(frozen=True, slots=True)
class QueueFigures:
    offered_per_s: float | None
    """Requests per second that arrived; None where all came at once."""
    capacity_per_s: float | None
    rho: float | None
    """None where it says nothing: all at once, or too few requests to measure a capacity."""
    inside: float
    """Requests inside on average (L), counted."""
    time_s: float
    """Of a request inside, on average (W)."""
    ended_per_s: float
    """Of those counted for Little's law: L = rate x W."""
    stability: Stability


def queue_figures(fleet: Fleet, workload: Workload, result: Result) -> QueueFigures:
    ended = [one for one in result.timelines if one.end_s is not None]
    span_s = max((one.arrival_s for one in ended), default=0.0) - min((one.arrival_s for one in ended), default=0.0)
    offered = (len(ended) - 1) / span_s if span_s > 0.0 and len(ended) > 1 else None
    capacity = capacity_per_s(fleet, workload)
    duration_s = result.summary.duration_s
    total_s = math.fsum((one.end_s or 0.0) - one.arrival_s for one in ended)
    rho = offered / capacity if offered is not None and capacity else None
    return QueueFigures(
        offered_per_s=offered,
        capacity_per_s=capacity,
        rho=rho,
        inside=total_s / duration_s if duration_s > 0.0 else 0.0,
        time_s=total_s / len(ended) if ended else 0.0,
        ended_per_s=len(ended) / duration_s if duration_s > 0.0 else 0.0,
        stability=stability_of(ended, rho),
    )


def capacity_per_s(fleet: Fleet, workload: Workload) -> float | None:
    """Requests a second of the fleet when some always wait: from a sixth to two thirds of a run of one replica whose requests
    all come at once, times the replicas. Users who think saturate nothing, so their later turns come at once too, histories
    and all."""
    probe = _crowd(workload, fleet.config.scheduler.max_sequences)
    if len(probe) < 8:
        return None
    scheduler = replace(fleet.config.scheduler, max_waiting=UNBOUNDED, max_waiting_tokens=UNBOUNDED)
    num_prefill = fleet.split.num_prefill if fleet.split else 0
    alone = replace(
        fleet,
        config=replace(fleet.config, scheduler=scheduler),
        cost=copy(fleet.cost),  # step counts reported must be those of the run that was asked for, not of this one
        num_replicas=fleet.num_replicas if num_prefill else 1,
        scaling=None,
        max_pending=None,
    )
    ends = sorted(one.end_s or 0.0 for one in simulate(alone, probe).timelines if one.first_token_s is not None)
    first, last = len(ends) // 6, 2 * len(ends) // 3
    if last <= first or ends[last] <= ends[first]:
        return None
    copies = 1 if num_prefill else fleet.scaling.max_replicas if fleet.scaling else fleet.num_replicas
    return copies * (last - first) / (ends[last] - ends[first])


def _crowd(workload: Workload, max_sequences: int) -> Workload:
    """The first requests of a workload, all at time zero; enough that a replica is full for most of them."""
    count = min(MOST_PROBED, max(64, 3 * max_sequences))
    requests: list[Request] = []
    for request in workload.requests:
        if len(requests) >= count:
            break
        requests.append(replace(request, request_id=len(requests), arrival_s=0.0, deadline_s=None))
        earlier = request
        for turn in workload.later.get(request.request_id, ()):
            earlier = turn.after(earlier, (0,) * (earlier.params.max_tokens or 1), len(requests), 0.0)
            requests.append(replace(earlier, deadline_s=None))
    return Workload(tuple(requests[:count]))


def stability_of(timelines: Sequence[Timeline], rho: float | None = None) -> Stability:
    """Compare how many waited for their first token in the last two quarters of the time in which requests came."""
    arrivals = sorted(one.arrival_s for one in timelines)
    if len(arrivals) < 16 or arrivals[-1] <= arrivals[0]:
        return Stability(True, 0.0, 0.0, 0)
    served = sorted(one.first_token_s if one.first_token_s is not None else one.end_s or 0.0 for one in timelines)
    start_s, span_s = arrivals[0], arrivals[-1] - arrivals[0]

    def waiting(low: float, high: float) -> float:
        moments = [start_s + span_s * (low + (high - low) * (number + 0.5) / 64) for number in range(64)]
        return sum(bisect_right(arrivals, at_s) - bisect_right(served, at_s) for at_s in moments) / len(moments)

    before, last = waiting(0.5, 0.75), waiting(0.75, 1.0)
    late_s = start_s + 0.75 * span_s
    refused = sum(one.arrival_s >= late_s and one.outcome == "refused" for one in timelines)
    factor = 1.0 if rho is not None and rho > 1.0 else GROWTH
    grows = last > factor * before and last - before > LEAST_GROWTH
    return Stability(not grows and not refused, before, last, refused)
