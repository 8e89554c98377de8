"""From a step log to a cost: steps that are alike gathered in cells, and ramps fitted to those.

A calibration's steps or a live server's, it makes no difference. What the ramps run over is `measured`'s affair, how they are
fitted is `fit`'s; here is which of them there are, and which cooling of the caches explains the steps best.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.errors import ConfigError
from penstock.runtime.core.features import Features, StepTime
from penstock.tools.cost.measured.fit import CostRamp, Errors, Mask, Numbers, column, errors_of, fit, held_out, ramps_of
from penstock.tools.cost.measured.ramps import VALUES, Fitted
from penstock.tools.cost.measured.slowdown import Slowdown, slowdowns_of
from penstock.tools.cost.measured.warmth import Cooling, Warmth

MIN_STEPS = 50
MAX_WEIGHT = 16
"""Steps of a cell that count: the hundredth of a kind teaches no more."""
ROW_KNEES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
DRAWN_KNEES = (1, 4, 16, 24, 64, 128, 256)

DEVICE_KNEES: Mapping[str, Sequence[float]] = {
    "rows": ROW_KNEES,
    "drawn": DRAWN_KNEES,
    "long_chunks": (),
    "single_kv": (),
    "own_kv": (),
    "long_kv": (),
    "max_kv": (),
    "long_pairs": (),
}
COLD_RAMPS = tuple(
    CostRamp(feature, 0.0, width)
    for feature, width in (("steps", 1.0), ("rows", 256.0), ("own_kv", math.inf), ("long_kv", math.inf))
)
"""Weights, activations, keys and values. A long step is warm before it is over."""
COOLINGS = tuple(
    Cooling(seconds, lost) for seconds in (0.01, 0.02, 0.04, 0.08, 0.16) for lost in (0.5, 0.7, 0.85, 0.92)
)
"""Exponents that are tried."""
COLD_FRACTION = 0.5
"""What must be lost for a step to be called cold."""
MIN_COLD = 8
"""Kinds of cold steps that must be known before anything is said of them."""
MAX_OFF = 0.4
"""Error of a step that tells no more about a cooling than a larger one."""
MAX_SLOWED = 2.5
"""Times the middle of its kind that a step counts for at most: a machine's slow moments belong to its cost, an accident does
not."""
MAX_SUMMED = 3.0
"""Times as long as usual, beyond which a step has no part in the sums that must agree."""
HOST_KNEES: Mapping[str, Sequence[float]] = {"steps": (), "chunks": (), "long_tokens": (), "long_kv": ()}


def fit_steps(steps: Sequence[StepTime], *, overlaps: bool) -> Fitted:
    """The cost that explains these steps best, and how far off it is on steps it has not seen."""
    usable = [step for step in steps if step.device_s > 0.0]
    if len(usable) < MIN_STEPS:
        raise ConfigError(f"there are {len(usable)} steps to fit a cost to; log at least {MIN_STEPS}")
    device, cooling = _fit_device(usable)
    cells = device.cells
    gathered = Features(*cells.features.T)
    kinds = {
        "all": np.ones(len(cells.seconds), dtype=bool),
        "decode": np.equal(gathered.num_long_tokens, 0),
        "prompt": np.equal(gathered.num_singles, 0),
    }
    kinds["mixed"] = ~(kinds["decode"] | kinds["prompt"])
    if cooling is not None:
        kinds["cold"] = cells.lost >= COLD_FRACTION
    errors_in = device.held_out()
    errors = {kind: errors_in(mask) for kind, mask in kinds.items() if mask.any()}
    busy = [step for step in usable if step.is_busy and step.host_s > 0.0]
    host: tuple[CostRamp, ...] = ()
    if len(busy) >= MIN_STEPS:
        cells = _gather(busy, np.array([step.host_s for step in busy]), [0.0] * len(busy))
        fitted = _Fit(cells, HOST_KNEES, ())
        host = fitted.ramps
        errors["host"] = fitted.held_out()(np.ones(len(cells.seconds), dtype=bool))
    most = Features(*(max(values) for values in zip(*(step.features for step in usable))))
    found = Fitted(device.ramps, host, overlaps, most, len(usable), errors, device.cold, cooling)
    return replace(found, slowdowns=slowdowns_along(found, usable))


def slowdowns_along(fitted: Fitted, steps: Sequence[StepTime]) -> tuple[Slowdown, ...]:
    """How even the machine was while it computed these steps, and how fast beside when it was fitted."""
    usable = [step for step in steps if step.device_s > 0.0]
    return slowdowns_of([step.device_s for step in usable], _usual(fitted, usable).tolist()) if usable else ()


def _usual(fitted: Fitted, steps: Sequence[StepTime]) -> Numbers:
    """What such steps in a row take on the device as a rule."""
    features = np.array([step.features for step in steps], dtype=float)
    warm = _predict(fitted.device, (), features, np.zeros(len(steps)))
    cold = _predict((), fitted.cold, features, np.ones(len(steps))) if fitted.cold else np.zeros(len(steps))
    warmth = Warmth(fitted.cooling)
    now, each = 0.0, []
    for step, warm_s, cold_s in zip(steps, warm, cold):
        now += step.rest_s
        each += warmth.predict(now, [warm_s], [cold_s])
        warmth.take(1)
        now += each[-1]
    return np.array(each)


def _fit_device(steps: Sequence[StepTime]) -> tuple["_Fit", Cooling | None]:
    """Slow moments are more often far off than fast ones, and a fit that outliers do not bend lies below the mean. So it is
    raised until the sums agree, since what a request waits for is a sum of steps."""
    seconds = np.array([step.device_s for step in steps])
    fitted, cooling, usual = _fit_cooling(steps, seconds)
    counts = seconds < MAX_SUMMED * usual
    if counts.any():
        fitted.slow_down(float(seconds[counts].sum() / usual[counts].sum()))
    return fitted, cooling


def _fit_cooling(steps: Sequence[StepTime], seconds: Numbers) -> tuple["_Fit", Cooling | None, Numbers]:
    """With the cooling that explains most, if there is any; and what each step takes then."""
    features = np.array([step.features for step in steps], dtype=float)
    steady = _Fit(_gather(steps, seconds, [0.0] * len(steps)), DEVICE_KNEES, ())
    usual = steady.predict(features, np.zeros(len(steps)))
    pauses = _pauses(steps, usual)
    best: tuple[_Fit, Cooling | None, Numbers] = (steady, None, usual)
    least = _off(usual, seconds)
    for cooling in COOLINGS:
        lost = cooling.along(pauses)
        cells = _gather(steps, seconds, lost)
        if np.count_nonzero(cells.lost >= COLD_FRACTION) < MIN_COLD:
            continue
        fitted = _Fit(cells, DEVICE_KNEES, COLD_RAMPS)
        predicted = fitted.predict(features, np.array(lost))
        off = _off(predicted, seconds)
        if fitted.cold and off < least:
            best, least = (fitted, cooling, predicted), off
    return best


def _pauses(steps: Sequence[StepTime], usual: Numbers) -> list[float]:
    """Between the beginnings of steps. What the one before took by chance must not seem to be the reason for what this one
    takes, so that counts which it takes as a rule."""
    return [step.rest_s + before_s for step, before_s in zip(steps, (usual[0], *usual))]


class _Cells(NamedTuple):
    """Steps that are alike, gathered."""

    features: Numbers
    """[cells, features], their means."""
    lost: Numbers
    """Of the caches, what they found lost."""
    seconds: Numbers
    """Their means, accidents cut short: what a request waits for is a sum of steps."""
    weights: Numbers


def _gather(steps: Sequence[StepTime], seconds: Numbers, lost: Sequence[float]) -> _Cells:
    """Alike is what differs by less than a tenth in every feature, and less than a fifth of the caches."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, step in enumerate(steps):
        key = (round(5.0 * lost[number]), *[round(8.0 * math.log2(1 + value)) for value in step.features])
        groups.setdefault(key, []).append(number)
    return _Cells(
        features=np.array([np.mean([steps[one].features for one in group], axis=0) for group in groups.values()]),
        lost=np.array([np.mean([lost[one] for one in group]) for group in groups.values()]),
        seconds=np.array([_mean([seconds[one] for one in group]) for group in groups.values()]),
        weights=np.array([min(len(group), MAX_WEIGHT) for group in groups.values()], dtype=float),
    )


def _mean(seconds: Sequence[float]) -> float:
    return float(np.minimum(seconds, MAX_SLOWED * np.median(seconds)).mean())


class _Fit:
    """Ramps over the features of cells, and others that count by what the caches have lost."""

    def __init__(self, cells: _Cells, knees: Mapping[str, Sequence[float]], cold: Sequence[CostRamp]) -> None:
        self.cells = cells
        values = {name: _values(name, cells.features) for name in knees}
        ramps = [ramp for name, each in knees.items() for ramp in ramps_of(name, each, values[name])]
        self._matrix = _matrix(ramps, cold, cells.features, cells.lost)
        found = fit(self._matrix, cells.seconds, cells.weights)
        self.ramps = _sloped(ramps, found[: len(ramps)])
        self.cold = _sloped(cold, found[len(ramps) :])
        self._factor = 1.0

    def slow_down(self, factor: float) -> None:
        self.ramps, self.cold = (
            tuple(ramp._replace(seconds=factor * ramp.seconds) for ramp in ramps) for ramps in (self.ramps, self.cold)
        )
        self._factor *= factor

    def predict(self, features: Numbers, lost: Numbers) -> Numbers:
        return _predict(self.ramps, self.cold, features, lost)

    def held_out(self) -> Callable[[Mask], Errors]:
        """The errors of cells that a mask chooses, each predicted by a fit that had not seen it."""
        cells = self.cells
        predicted = self._factor * held_out(self._matrix, cells.seconds, cells.weights)
        return lambda mask: errors_of(predicted[mask], cells.seconds[mask], cells.weights[mask])


def _predict(ramps: Sequence[CostRamp], cold: Sequence[CostRamp], features: Numbers, lost: Numbers) -> Numbers:
    slopes = np.array([ramp.seconds for ramp in (*ramps, *cold)])
    predicted: Numbers = _matrix(ramps, cold, features, lost) @ slopes
    return predicted


def _off(predicted: Numbers, seconds: Numbers) -> float:
    """Mean error, as shares of the measured times; nothing beyond `MAX_OFF` counts for more."""
    return float(np.minimum(np.abs(predicted / seconds - 1.0), MAX_OFF).mean())


def _matrix(ramps: Sequence[CostRamp], cold: Sequence[CostRamp], features: Numbers, lost: Numbers) -> Numbers:
    columns = [column(ramp, _values(ramp.feature, features)) for ramp in ramps]
    columns += [lost * column(ramp, _values(ramp.feature, features)) for ramp in cold]
    return np.stack(columns, axis=1)


def _values(name: str, features: Numbers) -> Numbers:
    return np.broadcast_to(np.asarray(VALUES[name](Features(*features.T)), float), len(features))


def _sloped(ramps: Sequence[CostRamp], seconds: Numbers) -> tuple[CostRamp, ...]:
    fitted = (ramp._replace(seconds=float(slope)) for ramp, slope in zip(ramps, seconds))
    return tuple(ramp for ramp in fitted if ramp.seconds > 0.0)
