"""Seconds a batch takes, from steps that were measured: ramps over the features of a batch, fitted to a step log.

    device   rows of the matrix products, with knees     every token is a row, and few rows cost as much as one
             rows that draw, with knees                  the output product
             chunks of several tokens                    each is a call of its own
             positions read, pairs scored                attention; the longest context apart, since it is waited for
    rest     rows, of the first step after a rest        threads that slept, caches that others used
    host     chunks, prompt tokens, positions            schedule, commit, and what the caller does between steps

Device and host add up, or the longer one counts where the engine overlaps them. It knows the range it was fitted on, and
counts how often it was asked for more.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penstock.core.batch import Batch
from penstock.core.features import Features, StepTime, features_of
from penstock.cost.fit import Errors, Mask, Numbers, Ramp, column, errors_of, fit, held_out, ramps_of
from penstock.errors import ConfigError

MIN_STEPS = 50
MAX_WEIGHT = 16
"""Steps of a cell that count: the hundredth of a kind teaches no more."""
ROW_KNEES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
DRAWN_KNEES = (1, 4, 16, 24, 64, 128, 256)

DEVICE_KNEES: Mapping[str, Sequence[float]] = {
    "rows": ROW_KNEES,
    "drawn": DRAWN_KNEES,
    "long_chunks": (),
    "single_kv": (),
    "long_kv": (),
    "max_kv": (),
    "long_pairs": (),
}
REST_RAMPS = (Ramp("steps", 0.0, math.inf), Ramp("rows", 0.0, 256.0))
"""Threads and caches are warm before a long step is over, so that what it costs to wake them has an end."""
REST_S = 0.004
"""Shorter pauses are none: a pool's threads are still awake."""
MIN_RESTED = 8
"""Kinds of steps after a rest that must be known before anything is said of them."""
HOST_KNEES: Mapping[str, Sequence[float]] = {"steps": (), "chunks": (), "long_tokens": (), "long_kv": ()}

VALUES: Mapping[str, Callable[[Features], int]] = {
    "steps": lambda one: 1,
    "chunks": lambda one: one.num_chunks,
    "rows": lambda one: one.num_tokens,
    "drawn": lambda one: one.num_drawn,
    "long_chunks": lambda one: one.num_chunks - one.num_singles,
    "long_tokens": lambda one: one.num_long_tokens,
    "single_kv": lambda one: one.single_kv,
    "long_kv": lambda one: one.long_kv,
    "max_kv": lambda one: one.max_kv,
    "long_pairs": lambda one: one.long_pairs,
}
"""What a ramp may run over."""
GROWTH: Mapping[str, Callable[[Features], int]] = {
    "single_kv": lambda one: one.num_singles,
    "long_kv": lambda one: one.num_chunks - one.num_singles,
    "max_kv": lambda one: 1,
    "long_pairs": lambda one: one.num_long_tokens,
}
"""By how much a value grows when every chunk is one position further; the others stay."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was made of a step log."""

    device: tuple[Ramp, ...]
    host: tuple[Ramp, ...]
    overlaps: bool
    most: Features
    """The largest of each feature that was measured."""
    num_steps: int
    errors: Mapping[str, Errors]
    """Of the device's time, by kind of step, and of the host's."""
    rest: tuple[Ramp, ...] = ()
    """What the first step after a rest takes longer."""


class Measured:
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
        self._rest = _Line(fitted.rest)

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

    def after_rest_s(self, batch: Batch, rest_s: float) -> float:
        return self._rest.run_s(features_of(batch), 1)[0] if rest_s >= REST_S else 0.0

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


class _Line:
    """A sum of ramps. Those over features that stay along a run are added up once for each combination of them."""

    def __init__(self, ramps: Sequence[Ramp]) -> None:
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
            if not low and width == np.inf:
                seconds = [so_far + slope * (value + growth * number) for number, so_far in enumerate(seconds)]
            else:
                seconds = [
                    so_far + slope * min(max(value + growth * number, 0.0), width)
                    for number, so_far in enumerate(seconds)
                ]
        return seconds

    def _add_still(self, num_chunks: int, num_singles: int, num_long_tokens: int, num_drawn: int) -> float:
        features = Features(num_chunks, num_singles, num_long_tokens, num_drawn, 0, 0, 0, 0)
        total = 0.0
        for value_of, low, width, slope in self._still:
            total += slope * min(max(value_of(features) - low, 0.0), width)
        return total


def fit_steps(steps: Sequence[StepTime], *, overlaps: bool) -> Fitted:
    """The cost that explains these steps best, and how far off it is on steps it has not seen."""
    usable = [step for step in steps if step.device_s > 0.0]
    if len(usable) < MIN_STEPS:
        raise ConfigError(f"there are {len(usable)} steps to fit a cost to; log at least {MIN_STEPS}")
    cells = _gather(usable, lambda step: step.device_s)
    device, rest, errors_in = _fit_ramps(cells, DEVICE_KNEES, REST_RAMPS)
    gathered = Features(*cells.features.T)
    kinds = {
        "all": np.ones(len(cells.seconds), dtype=bool),
        "decode": np.equal(gathered.num_long_tokens, 0),
        "prompt": np.equal(gathered.num_singles, 0),
    }
    kinds["mixed"] = ~(kinds["decode"] | kinds["prompt"])
    kinds["after rest"] = cells.rested
    errors = {kind: errors_in(mask) for kind, mask in kinds.items() if mask.any()}
    busy = [step for step in usable if step.is_busy and step.host_s > 0.0]
    host: tuple[Ramp, ...] = ()
    if len(busy) >= MIN_STEPS:
        cells = _gather(busy, lambda step: step.host_s)
        host, _, errors_in = _fit_ramps(cells, HOST_KNEES, ())
        errors["host"] = errors_in(np.ones(len(cells.seconds), dtype=bool))
    most = Features(*(max(values) for values in zip(*(step.features for step in usable))))
    return Fitted(device, host, overlaps, most, len(usable), errors, rest)


class _Cells(NamedTuple):
    """Steps that are alike, gathered."""

    features: Numbers
    """[cells, features], their means."""
    rested: Mask
    seconds: Numbers
    """Their medians: what disturbed a step disturbs no cell."""
    weights: Numbers


def _gather(steps: Sequence[StepTime], seconds_of: Callable[[StepTime], float]) -> _Cells:
    """Alike is what differs by less than a tenth in every feature."""
    groups: dict[tuple[int, ...], list[StepTime]] = {}
    for step in steps:
        key = (int(step.rest_s >= REST_S), *[round(8.0 * math.log2(1 + value)) for value in step.features])
        groups.setdefault(key, []).append(step)
    features = [np.mean([step.features for step in group], axis=0) for group in groups.values()]
    seconds = [float(np.median([seconds_of(step) for step in group])) for group in groups.values()]
    weights = [min(len(group), MAX_WEIGHT) for group in groups.values()]
    rested = [bool(key[0]) for key in groups]
    return _Cells(np.array(features, dtype=float), np.array(rested), np.array(seconds), np.array(weights, dtype=float))


def _fit_ramps(
    cells: _Cells, knees: Mapping[str, Sequence[float]], rests: Sequence[Ramp]
) -> tuple[tuple[Ramp, ...], tuple[Ramp, ...], Callable[[Mask], Errors]]:
    """Ramps, those of steps after a rest, and the errors of cells that a mask chooses, each predicted by a fit that had not
    seen it."""
    gathered = Features(*cells.features.T)
    names = {*knees, *(ramp.feature for ramp in rests)}
    values = {name: np.broadcast_to(np.asarray(VALUES[name](gathered), float), cells.seconds.shape) for name in names}
    ramps = [ramp for name, each in knees.items() for ramp in ramps_of(name, each, values[name])]
    columns = [column(ramp, values[ramp.feature]) for ramp in ramps]
    if cells.rested.sum() < MIN_RESTED:
        rests = ()
    columns += [cells.rested * column(ramp, values[ramp.feature]) for ramp in rests]
    matrix = np.stack(columns, axis=1)
    found = fit(matrix, cells.seconds, cells.weights)
    predicted = held_out(matrix, cells.seconds, cells.weights)

    def errors(mask: Mask) -> Errors:
        return errors_of(predicted[mask], cells.seconds[mask], cells.weights[mask])

    def slopes(ramps: Sequence[Ramp], seconds: Numbers) -> tuple[Ramp, ...]:
        fitted = (ramp._replace(seconds=float(slope)) for ramp, slope in zip(ramps, seconds))
        return tuple(ramp for ramp in fitted if ramp.seconds > 0.0)

    return slopes(ramps, found[: len(ramps)]), slopes(rests, found[len(ramps) :]), errors
