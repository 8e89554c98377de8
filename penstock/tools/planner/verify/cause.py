"""Why a prediction and a measurement part: the likeliest cause, out of what both sides say of themselves. Pure."""

import math
from collections.abc import Mapping
from typing import NamedTuple

STEP_OFF = 0.1
"""Share by which a live step may differ from the predicted one before that is the cause."""
HITS_OFF = 0.05
"""Of prompt tokens."""
BUSY = 0.1
"""Of the machine's processors, what others may use."""
LOST = {
    "throttled_fraction": "the container ran out of processor time in {:.0f} % of periods",
    "stolen_fraction": "the hypervisor gave {:.0f} % of the processors to others",
    "others_fraction": "other programs used {:.0f} % of the processors",
}
"""Signs of what a machine lost to others, the first that is too large counts."""
PROFILE = "measure this machine with penstock profile, and plan with --profile"


class LiveEvidence(NamedTuple):
    """What the server said of the time it was measured; NaN where it said nothing."""

    signs: Mapping[str, float]
    """Of the machine: `others_fraction`, `stolen_fraction`, `throttled_fraction`, `swapped_per_s`."""
    step_ratio: float = math.nan
    """Measured seconds of a usual step over the predicted ones."""
    model_error: float = math.nan
    """Of the server's own step model, its median error: how even the machine was."""
    hit_fraction: float = math.nan
    predicted_hits: float = math.nan
    tokens_per_step: float = math.nan
    """Tokens that a sequence gained; more than one where drafts were accepted."""


def cause_of(evidence: LiveEvidence, *, is_profiled: bool) -> tuple[str, str]:
    """The likeliest cause in words, and what to do. What a machine lost to others comes before what follows from it."""
    for name, words in LOST.items():
        if (share := evidence.signs.get(name, math.nan)) > BUSY:
            return words.format(100 * share), "measure again when the machine is its own; penstock doctor names who"
    if abs(evidence.hit_fraction - evidence.predicted_hits) > HITS_OFF:
        found, predicted = 100 * evidence.hit_fraction, 100 * evidence.predicted_hits
        return (
            f"the prefix cache gave {found:.0f} % of prompt tokens, {predicted:.0f} % were predicted",
            "record the real load with serve --record and plan with --trace: prefixes decide here",
        )
    if evidence.tokens_per_step > 1.15:
        return (
            f"drafts gave {evidence.tokens_per_step:.2f} tokens a step, and the prediction has none",
            "plan without speculation (serve --speculate off), or take the difference as a gain",
        )
    if abs(evidence.step_ratio - 1.0) > STEP_OFF:
        slower = f"steps take {evidence.step_ratio:.2f} times what was predicted"
        if is_profiled:
            return (
                f"{slower}: the profile is of another period, or another machine",
                "fit this server's own steps: " + STEPS,
            )
        return f"{slower}: the device reaches another share of its peak than was assumed", PROFILE
    if evidence.model_error > 2 * STEP_OFF:
        return (
            f"steps of one kind differ by {100 * evidence.model_error:.0f} %: the machine is uneven",
            "send more requests (--num-requests): chance decides here",
        )
    if math.isnan(evidence.step_ratio):
        return "the server does not say what its steps take", STEPS if is_profiled else PROFILE
    return (
        "steps take what was predicted, so the rest lies before and after them: queueing at another moment, or the gateway",
        "send more requests (--num-requests), and see penstock doctor for the gateway",
    )


STEPS = "serve --step-log FILE, penstock profile --steps FILE, and plan with that --profile"
