"""How many drafts are worth checking: a pure function of how likely they are and of what a step costs.

Every draft adds its chance to the tokens that a step yields, and a token to those that it computes. Those likeliest to come
true are taken first, over all sequences, for as long as tokens a second rise. A step that computes is not slowed by drafts that
are not taken, so a full batch or a random text ends with none.
"""

from collections.abc import Callable, Sequence
from math import fsum

LEAST_GAIN = 1.02
"""Below this a gain may be noise: nobody drafts."""


def choose_lengths(
    chances: Sequence[Sequence[float]], num_sequences: int, step_s: Callable[[int], float], fixed_s: float = 0.0
) -> list[int]:
    """For each sequence how many of its drafts to check.

    `chances` are those that a draft and all before it come true, so they never rise along a guess. `num_sequences` take part in
    the step, with drafts or without. `step_s` is what a step of so many tokens takes; `fixed_s` is spent besides if any draft
    is checked at all.
    """
    ordered = sorted(
        ((chance, index) for index, guess in enumerate(chances) for chance in guess),
        key=lambda entry: -entry[0],
    )
    plain = best = num_sequences / step_s(num_sequences)
    expected, num_taken = float(num_sequences), 0
    for count, (chance, _) in enumerate(ordered, 1):
        expected += chance
        yielded = expected / (step_s(num_sequences + count) + fixed_s)
        if yielded > best:
            best, num_taken = yielded, count
    lengths = [0] * len(chances)
    if best < plain * LEAST_GAIN:
        return lengths
    for _, index in ordered[:num_taken]:
        lengths[index] += 1
    return lengths


def tokens_per_round(acceptance: float, num_drafts: int) -> float:
    """Expected tokens of a check of drafts that are each accepted with the same chance: (1 - a^(k+1)) / (1 - a)."""
    return fsum(acceptance**place for place in range(num_drafts + 1))
