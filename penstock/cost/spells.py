"""Moments in which a machine is slower or faster than as a rule.

A virtual machine shares memory and cores with others it cannot see. With nobody else on it, the same steps took a fifth less
time in one half minute than on the whole, and a fifth more in another; from one second to the next they differ as much. What
was measured in a slow moment is no slow kind of step, so spells are told from the steps around, whatever kind they are.
"""

import math
from collections.abc import Sequence

import numpy as np

from penstock.cost.fit import Numbers

SPELL_S = 1.0
"""Steps so far apart tell little of one another."""
MAX_TIMES_OFF = 2.5
"""Times too long or too short: beyond it a step is an accident that tells nothing of those around it."""
MAX_WEIGHT_S = 0.05
"""A longer step tells no more of a spell: how long it takes as a rule may itself be what is off."""
TRUST_S = 0.02
"""Seconds of steps that say otherwise, before it is believed that this is a spell."""


def pace(seconds: Numbers, usual: Numbers) -> float:
    """By which factor steps that took `seconds` were slower than what they take as a rule, all of them together."""
    is_told = np.abs(np.log(seconds / usual)) < math.log(MAX_TIMES_OFF)
    return float(seconds[is_told].sum() / usual[is_told].sum()) if is_told.any() else 1.0


def spells(starts: Sequence[float], seconds: Numbers, usual: Numbers) -> Numbers:
    """Likewise for the steps around each one: those before and after it, the less the further away.

    What a step itself took has no part in it: a kind of step that is fitted badly must not pass for a spell.
    """
    weights = np.minimum(usual, MAX_WEIGHT_S)
    told = weights * np.clip(seconds / usual, 1.0 / MAX_TIMES_OFF, MAX_TIMES_OFF)
    # When the clock goes back, another log begins.
    nearness = [math.exp(-gap_s / SPELL_S) if gap_s >= 0.0 else 0.0 for gap_s in np.diff(starts).tolist()]
    count = len(seconds)
    sums, totals = np.full(count, TRUST_S), np.full(count, TRUST_S)
    for order, near in ((range(count), [0.0, *nearness]), (range(count - 1, -1, -1), [*nearness, 0.0])):
        so_far = total = 0.0
        for number in order:
            so_far *= near[number]
            total *= near[number]
            sums[number] += so_far
            totals[number] += total
            so_far += told[number]
            total += weights[number]
    found: Numbers = sums / totals
    return found
