"""How much of what every step reads a device's caches have lost.

A step reads all weights. Where they lie in a cache that others use too, they are lost bit by bit until they are read again,
and won back over a few readings; so the steps after a rest take longer, and no less those after a long prompt, during which
nothing was read twice. On a processor that shares its last cache with other machines a model of 95 MB generates one and a half
times slower then, for half a dozen steps.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.tools.cost.measured.slowdown import SlowdownTrace


class Cooling(NamedTuple):
    seconds: float
    """Without a reading, after which all but a third (1/e) is lost."""
    lost_fraction: float
    """Of what was lost, what is still lost after one reading."""

    def lost(self, lost: float, seconds: float) -> float:
        """What is lost so long after a reading that left `lost`."""
        return 1.0 - (1.0 - lost) * math.exp(-seconds / self.seconds)

    def along(self, pauses: Iterable[float]) -> list[float]:
        """What each of a row of readings finds lost; `pauses` lie before them."""
        each, lost = [], 1.0
        for pause in pauses:
            each.append(self.lost(lost, pause))
            lost = each[-1] * self.lost_fraction
        return each


class Warmth:
    """Of one device, from step to step: how long each takes, given what the caches have lost and the moment it falls into."""

    def __init__(self, cooling: Cooling | None, slowdown_trace: SlowdownTrace | None = None) -> None:
        """Without a cooling nothing is ever lost; without a slowdown trace all moments are alike."""
        self._cooling = cooling or Cooling(math.inf, 0.0)
        self._slowdown_trace = slowdown_trace
        self._lost = 1.0 if cooling else 0.0
        """After the last step began to read."""
        self._begin_s = -math.inf if cooling else 0.0
        """When it began."""
        self._ahead: list[tuple[float, float]] = []
        """Likewise, of steps that were predicted."""

    def predict(self, start_s: float, durations: Sequence[float], cold: Sequence[float]) -> list[float]:
        """Durations of steps in a row, given those with warm caches, and by how much each is longer with cold ones."""
        cooling, slowdown_trace = self._cooling, self._slowdown_trace
        lost, begin_s = self._lost, self._begin_s
        self._ahead, longer = [], []
        for duration_s, cold_s in zip(durations, cold):
            lost = cooling.lost(lost, start_s - begin_s)
            usual_s = duration_s + lost * cold_s
            longer.append(usual_s if slowdown_trace is None else slowdown_trace.lasting(start_s, usual_s))
            begin_s = start_s
            start_s += longer[-1]
            lost *= cooling.lost_fraction
            self._ahead.append((lost, begin_s))
        return longer

    def take(self, num_steps: int) -> None:
        """So many of the steps predicted were computed."""
        self._lost, self._begin_s = self._ahead[num_steps - 1]
