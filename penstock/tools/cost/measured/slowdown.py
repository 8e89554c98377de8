"""How even a machine is: by how much longer steps take than they usually do, moment by moment, as a calibration found it.

A processor that others share stands still for a while, or is slow for a fifth of a second; half of all steps are faster than
the mean, and a few take three times as long. A simulation in which every step takes its mean has no such moments, so its worst
waits are shorter than real ones, in which a crowd comes at a bad moment. So what was found is played again, over and over, from
a moment that is drawn by lot.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

MIN_SLOWDOWN_S = 0.01
"""Shorter ones are joined: it is sums of steps that are waited for."""
MAX_PAUSE_S = 1.0
"""What a step may take longer than usual: beyond it no neighbour was busy, somebody shut the lid."""
MIN_FACTOR, MAX_FACTOR = 1e-3, 1e3
STRETCH = 64
"""Spells in a row that are kept or left out together."""
MAX_STRETCHES = 64


class Slowdown(NamedTuple):
    seconds: float
    factor: float
    """What takes a second as a rule takes so many."""


class SlowdownTrace:
    """Spells, one after the other without end, for one device from one moment on."""

    def __init__(self, slowdowns: Sequence[Slowdown], seed: str) -> None:
        self._ends = list(accumulate(slowdown.seconds for slowdown in slowdowns))
        self._factors = [slowdown.factor for slowdown in slowdowns]
        self._begin_s = Random(seed).uniform(0.0, self._ends[-1])

    def lasting(self, start_s: float, usual_s: float) -> float:
        """How long work takes that starts then and usually takes so long."""
        ends, factors = self._ends, self._factors
        at_s = (start_s + self._begin_s) % ends[-1]
        place = bisect_right(ends, at_s) % len(ends)
        lasted_s = 0.0
        while (left_s := ends[place] - at_s) < usual_s * factors[place]:
            lasted_s += left_s
            usual_s -= left_s / factors[place]
            at_s = ends[place]
            place += 1
            if place == len(ends):
                place, at_s = 0, 0.0
        return lasted_s + usual_s * factors[place]


def slowdowns_of(seconds: Iterable[float], usual: Iterable[float]) -> tuple[Slowdown, ...]:
    """What steps took in a row, and what such steps usually take. Of many, stretches from all along are kept."""
    slowdowns: list[Slowdown] = []
    taken_s = usual_s = 0.0
    for step_s, usual_step_s in zip(seconds, usual, strict=True):
        taken_s += min(step_s, usual_step_s + MAX_PAUSE_S)
        usual_s += usual_step_s
        if taken_s >= MIN_SLOWDOWN_S and usual_s > 0.0:
            factor = min(max(taken_s / usual_s, MIN_FACTOR), MAX_FACTOR)
            slowdowns.append(Slowdown(round(taken_s, 5), round(factor, 3)))
            taken_s = usual_s = 0.0
    num_stretches = -(-len(slowdowns) // STRETCH)
    if num_stretches <= MAX_STRETCHES:
        return tuple(slowdowns)
    chosen = [number * num_stretches // MAX_STRETCHES for number in range(MAX_STRETCHES)]
    return tuple(slowdown for one in chosen for slowdown in slowdowns[one * STRETCH : (one + 1) * STRETCH])
