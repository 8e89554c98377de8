"""Fits seconds to features: sums of ramps with no negative coefficient, by least squares that outliers do not bend.

A ramp is a stretch of one feature, `min(max(x - low, 0), width)`; several in a row make a rising line with knees. Nothing here
knows what the features mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

NUM_FOLDS = 5
NUM_ROUNDS = 12
"""Of weighing down what lies far off."""
HUBER = 1.5
"""Spreads beyond which a residual counts by its size, not by its square."""
MAX_OFF = 4.0
"""How many times too long or too short a prediction may be for its errors to be shares of it."""
TOLERANCE = 1e-12


class CostRamp(NamedTuple):
    """Seconds that grow with one feature over one stretch of it."""

    feature: str
    low: float
    width: float
    """May be infinite."""
    seconds: float = 0.0
    """For each unit."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of predictions for steps that the fit had not seen, as shares of the measured time."""

    num_cells: int
    median: float
    p95: float
    bias: float
    """Sum of predictions over sum of measurements, less one."""


def ramps_of(feature: str, knees: Sequence[float], values: Numbers) -> list[CostRamp]:
    """Stretches from 0 on between those knees that leave measured values on both sides; the last one is endless."""
    top = float(values.max(initial=0.0))
    if top <= 0.0:
        return []
    low = float(values.min(initial=top))
    kept = [0.0, *(knee for knee in knees if low <= knee < top)]
    ends = [*kept[1:], np.inf]
    return [CostRamp(feature, start, end - start) for start, end in zip(kept, ends)]


def column(ramp: CostRamp, values: Numbers) -> Numbers:
    stretch: Numbers = np.clip(values - ramp.low, 0.0, ramp.width)
    return stretch


def fit(matrix: Numbers, seconds: Numbers, weights: Numbers) -> Numbers:
    """Coefficients, none below 0, with the least relative error; what lies far off counts less and less.

    Errors are shares of what is predicted, from round to round: as shares of what was measured, a step that took half its
    time would weigh more than one that took twice as long, and noise alone would pull every prediction down.
    """
    scale = np.maximum(matrix.max(axis=0), TOLERANCE)
    scaled = matrix / scale
    reference, factors = seconds, np.sqrt(weights)
    for _ in range(NUM_ROUNDS):
        found = non_negative(scaled * (factors / reference)[:, None], factors * seconds / reference)
        reference = np.clip(scaled @ found, seconds / MAX_OFF, seconds * MAX_OFF)
        residuals = np.abs(seconds / reference - 1.0)
        spread = max(1.4826 * float(np.median(residuals)), TOLERANCE)
        factors = np.sqrt(weights * np.minimum(1.0, HUBER * spread / np.maximum(residuals, TOLERANCE)))
    coefficients: Numbers = found / scale
    return coefficients


def non_negative(matrix: Numbers, target: Numbers) -> Numbers:
    """Least squares with no negative coefficient: columns enter one at a time where the error falls most steeply.

    When the free solution of those inside turns one negative, the step stops where the first reaches 0, and that one leaves.
    """
    gram, projected = matrix.T @ matrix, matrix.T @ target
    num_columns = len(projected)
    found = np.zeros(num_columns)
    is_inside = np.zeros(num_columns, dtype=bool)
    limit = TOLERANCE * max(float(np.abs(projected).max(initial=0.0)), TOLERANCE)
    for _ in range(10 * num_columns):
        slope = projected - gram @ found
        slope[is_inside] = -np.inf
        if is_inside.all() or slope.max() <= limit:
            break
        is_inside[int(slope.argmax())] = True
        while True:
            inside = np.flatnonzero(is_inside)
            free = np.linalg.lstsq(gram[np.ix_(inside, inside)], projected[inside], rcond=None)[0]
            if (free > 0.0).all():
                found[inside] = free
                break
            old = found[inside]
            falling = free <= 0.0
            share = float((old[falling] / np.maximum(old[falling] - free[falling], TOLERANCE**2)).min())
            found[inside] = old + share * (free - old)
            is_inside[inside[falling & (found[inside] <= found[inside][falling].min())]] = False
            found[~is_inside] = 0.0
            if not is_inside.any():
                break
    return found


def held_out(matrix: Numbers, seconds: Numbers, weights: Numbers) -> Numbers:
    """Predictions for every row by a fit to the others: four fifths are fitted and the rest predicted, five times over."""
    predicted = np.zeros_like(seconds)
    for fold in range(NUM_FOLDS):
        is_held = np.arange(len(seconds)) % NUM_FOLDS == fold
        if is_held.any() and not is_held.all():
            rest = ~is_held
            predicted[is_held] = matrix[is_held] @ fit(matrix[rest], seconds[rest], weights[rest])
    return predicted


def errors_of(predicted: Numbers, seconds: Numbers, weights: Numbers) -> Errors:
    off = np.abs(predicted / seconds - 1.0)
    order = np.argsort(off)
    shares = np.cumsum(weights[order]) / weights.sum()
    return Errors(
        num_cells=len(seconds),
        median=float(off[order][np.searchsorted(shares, 0.5)]),
        p95=float(off[order][np.searchsorted(shares, 0.95)]),
        bias=float((predicted * weights).sum() / (seconds * weights).sum() - 1.0),
    )
