"""Seconds a batch takes, from steps that were measured: ramps over the features of a batch, fitted to a step log (`fitting`).

    device   rows of the matrix products, with knees     every token is a row, and few rows cost as much as one
             rows that draw, with knees                  the output product
             chunks of several tokens                    each is a call of its own
             positions read, pairs scored                attention; the longest context apart, since it is waited for, and
                                                         what no other sequence reads, since it comes from further away
    cold     steps, positions read                       what the caches have lost by then (`warmth`) is read from memory
    host     chunks, prompt tokens, positions            schedule, commit, and what the caller does between steps

Device and host add up, or the longer one counts where the engine overlaps them. It knows the range it was fitted on, and
counts how often it was asked for more.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.features import Features, features_of
from penstock.tools.cost.layout import Traffic
from penstock.tools.cost.measured.fit import CostRamp, Errors
from penstock.tools.cost.measured.slowdown import Slowdown
from penstock.tools.cost.measured.warmth import Cooling

VALUES: Mapping[str, Callable[[Features], int]] = {
    "steps": lambda one: 1,
    "chunks": lambda one: one.num_chunks,
    "rows": lambda one: one.num_tokens,
    "drawn": lambda one: one.num_drawn,
    "long_chunks": lambda one: one.num_chunks - one.num_singles,
    "long_tokens": lambda one: one.num_long_tokens,
    "single_kv": lambda one: one.single_kv,
    "own_kv": lambda one: one.single_kv - one.shared_kv,
    "long_kv": lambda one: one.long_kv,
    "max_kv": lambda one: one.max_kv,
    "long_pairs": lambda one: one.long_pairs,
}
"""What a ramp may run over."""
GROWTH: Mapping[str, Callable[[Features], int]] = {
    "single_kv": lambda one: one.num_singles,
    "own_kv": lambda one: one.num_singles,
    "long_kv": lambda one: one.num_chunks - one.num_singles,
    "max_kv": lambda one: 1,
    "long_pairs": lambda one: one.num_long_tokens,
}
"""By how much a value grows when every chunk is one position further; the others stay."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was made of a step log."""

    device: tuple[CostRamp, ...]
    host: tuple[CostRamp, ...]
    overlaps: bool
    most: Features
    """The largest of each feature that was measured."""
    num_steps: int
    errors: Mapping[str, Errors]
    """Of the device's time, by kind of step, and of the host's."""
    cold: tuple[CostRamp, ...] = ()
    """What a step takes longer if the caches have lost everything."""
    cooling: Cooling | None = None
    """How they lose it."""
    slowdowns: tuple[Slowdown, ...] = ()
    """How even the machine was meanwhile."""

    def slower(self, factor: float) -> "Fitted":
        """The same on a device that takes so many times as long: one that others share, or at another time."""
        device, cold = (
            tuple(ramp._replace(seconds=factor * ramp.seconds) for ramp in ramps) for ramps in (self.device, self.cold)
        )
        return replace(self, device=device, cold=cold)


class MeasuredCost:
    """A `Cost`. What does not change along a run is looked up; the rest is straight lines."""

    def __init__(self, fitted: Fitted) -> None:
        self.num_asked = 0
        self.num_outside = 0
        """Steps beyond what was measured: what is said of them is extrapolated."""
        self.furthest: dict[str, int] = {}
        """By feature, the largest that was asked beyond the measured range."""
        self.fitted = fitted
        self._most = fitted.most
        self._overlaps = fitted.overlaps
        self._device = _Line(fitted.device)
        self._host = _Line(fitted.host)
        self._cold = _Line(fitted.cold)
        self.cooling = fitted.cooling
        self.slowdowns = fitted.slowdowns

    def __copy__(self) -> "MeasuredCost":
        """The same fit, with counts of its own."""
        return MeasuredCost(self.fitted)

    def step_s(self, batch: Batch) -> float:
        return self.run_s(batch, 1)[0]

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        features = features_of(batch)
        self._look(features, num_steps)
        device = self._device.run_s(features, num_steps)
        host = self._host.run_s(features, num_steps)
        if self._overlaps:
            return [one if one > other else other for one, other in zip(device, host)]
        return [one + other for one, other in zip(device, host)]

    def cold_s(self, batch: Batch, num_steps: int) -> list[float]:
        return self._cold.run_s(features_of(batch), num_steps)

    def outside(self, features: Features) -> tuple[str, ...]:
        """The features that lie beyond what was measured."""
        pairs = zip(Features._fields, features, self._most)
        return tuple(name for name, value, most in pairs if value > most)

    def _look(self, features: Features, num_steps: int) -> None:
        """Count, without looking closer, unless something is outside."""
        self.num_asked += num_steps
        last = features
        if num_steps > 1:
            last = features._replace(
                single_kv=features.single_kv + features.num_singles * (num_steps - 1),
                max_kv=features.max_kv + num_steps - 1,
            )
        for value, most in zip(last, self._most):
            if value > most:
                break
        else:
            return
        self.num_outside += num_steps
        for name in self.outside(last):
            self.furthest[name] = max(self.furthest.get(name, 0), getattr(last, name))


class RankedCost(MeasuredCost):
    """An engine that was measured in one process, cut over ranks that share its processor: they compute as much between them
    with as many cores, and what they exchange comes on top."""

    def __init__(self, fitted: Fitted, traffic: Traffic) -> None:
        super().__init__(fitted)
        self.traffic = traffic

    def __copy__(self) -> "RankedCost":
        return RankedCost(self.fitted, self.traffic)

    def run_s(self, batch: Batch, num_steps: int) -> list[float]:
        num_tokens = batch.num_tokens
        exchanged_s = self.traffic.seconds(num_tokens) + self.traffic.hops_s(num_tokens)
        return [seconds + exchanged_s for seconds in super().run_s(batch, num_steps)]


class _Line:
    """A sum of ramps. Those over features that stay along a run are added up once for each combination of them."""

    def __init__(self, ramps: Sequence[CostRamp]) -> None:
        still = [ramp for ramp in ramps if ramp.feature not in GROWTH and ramp.seconds > 0.0]
        self._moving = [
            (VALUES[ramp.feature], GROWTH[ramp.feature], *ramp[1:])
            for ramp in ramps
            if ramp.feature in GROWTH and ramp.seconds > 0.0
        ]
        self._still = [(VALUES[ramp.feature], *ramp[1:]) for ramp in still]
        self._still_s = lru_cache(maxsize=65536)(self._add_still)

    def run_s(self, features: Features, num_steps: int) -> list[float]:
        """Written so that a run and its steps one by one give the same numbers to the last bit."""
        seconds = [self._still_s(*features[:4])] * num_steps
        for value_of, growth_of, low, width, slope in self._moving:
            value, growth = value_of(features) - low, growth_of(features)
            if value >= 0.0 and width == math.inf:
                seconds = [so_far + slope * (value + growth * number) for number, so_far in enumerate(seconds)]
            else:
                seconds = [
                    so_far + slope * min(max(value + growth * number, 0.0), width)
                    for number, so_far in enumerate(seconds)
                ]
        return seconds

    def _add_still(self, num_chunks: int, num_singles: int, num_long_tokens: int, num_drawn: int) -> float:
        features = Features(num_chunks, num_singles, num_long_tokens, num_drawn, 0, 0, 0, 0, 0)
        total = 0.0
        for value_of, low, width, slope in self._still:
            total += slope * min(max(value_of(features) - low, 0.0), width)
        return total
