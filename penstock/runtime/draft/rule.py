"""How many drafts are worth checking: a pure function of how likely they are and of what a step costs.

Every draft adds its chance of acceptance to the tokens that a step yields, and one token to those that the step computes. The
likeliest drafts of all sequences are taken first, as long as the expected tokens per second rise. A full batch, whose steps are
compute-bound, and a text without repetition end with no drafts at all.
"""

from collections.abc import Callable, Sequence
from math import fsum

LEAST_GAIN = 1.05
"""A smaller gain may be noise: no draft is checked."""


def choose_lengths(chances: Sequence[Sequence[float]], num_sequences: int, step_s: Callable[[int], float]) -> list[int]:
    """For each sequence how many of its drafts to check.

    `chances` are those that a draft and all before it are accepted, so they never rise along a guess. `num_sequences` take part
    in the step, with drafts or without. `step_s` gives the seconds of a step by its tokens.
    """
    ordered = sorted(
        ((chance, index) for index, guess in enumerate(chances) for chance in guess),
        key=lambda entry: -entry[0],
    )
    plain = best = num_sequences / step_s(num_sequences)
    expected, num_taken = float(num_sequences), 0
    for count, (chance, _) in enumerate(ordered, 1):
        expected += chance
        yielded = expected / step_s(num_sequences + count)
        if yielded > best:
            best, num_taken = yielded, count
    lengths = [0] * len(chances)
    if best < plain * LEAST_GAIN:
        return lengths
    for _, index in ordered[:num_taken]:
        lengths[index] += 1
    return lengths


def tokens_per_round(acceptance: float, num_drafts: int) -> float:
    """Expected tokens of a step with drafts that are each accepted with the same chance: (1 - a^(k+1)) / (1 - a)."""
    return fsum(acceptance**place for place in range(num_drafts + 1))
