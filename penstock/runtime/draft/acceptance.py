"""How likely a guess is right, learned from every guess that was made, whether or not it was checked.

A guess found after a long agreement is likelier right than one found after a short one, and each token of it that comes true
makes the agreement longer. So acceptance is measured by source and agreement over all generations, and corrected by the recent
guesses of the generation itself.
"""

from bisect import bisect
from collections.abc import Sequence

from penstock.runtime.draft.drafter import Guess, Key

LEVELS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
"""Lower bounds of the classes that agreements are sorted into."""
FIRST_CHANCES = (0.30, 0.35, 0.40, 0.50, 0.60, 0.65, 0.70, 0.80, 0.85, 0.90, 0.93)
"""Prior chance of each class, before anything was measured."""
MADE_CHANCES = (0.65,) * len(LEVELS)
"""The same for guesses that a model computes: their classes are positions in the guess instead of agreements."""
MADE = ("model", "medusa", "eagle", "mtp")
FIRST_WEIGHT = 4.0
"""Weight of the prior, in guesses."""
OWN_WEIGHT = 6.0
"""Guesses after which a generation's own rate weighs as much as the rate of all."""
MEMORY = 400.0
"""Guesses over which the rate of all generations is averaged; below, the rate of one."""
OWN_MEMORY = 24.0


_LEVEL_OF = [bisect(LEVELS, match) - 1 for match in range(LEVELS[-1] + 1)]


class Rate:
    """A share of hits with exponential forgetting: a trial `memory` trials ago weighs about a third of the latest."""

    __slots__ = ("_keep", "num_hits", "num_trials")

    def __init__(self, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self.num_hits = self.num_trials = 0.0

    def add(self, is_hit: bool) -> None:
        self.num_hits = self.num_hits * self._keep + is_hit
        self.num_trials = self.num_trials * self._keep + 1.0

    def mean(self, belief: float, weight: float) -> float:
        return (self.num_hits + belief * weight) / (self.num_trials + weight)


class Acceptance:
    def __init__(self) -> None:
        self._levels: dict[str, list[Rate]] = {}
        self._chances: dict[str, list[float]] = {}
        """Present chance of each class, by source."""
        self._own: dict[Key, Rate] = {}

    def chances(self, key: Key, guess: Guess) -> list[float]:
        """For each token of a guess, the chance that it and all before it come true."""
        by_level = self._chances.get(guess.source) or _first_chances(guess.source)
        own = self._own.get(key)
        num_hits, num_trials = (own.num_hits, own.num_trials) if own else (0.0, 0.0)
        chance, chances, top = 1.0, [], len(_LEVEL_OF) - 1
        for match in range(guess.match, guess.match + len(guess.tokens)):
            belief = by_level[_LEVEL_OF[match if match < top else top]]
            chance *= (num_hits + belief * OWN_WEIGHT) / (num_trials + OWN_WEIGHT)
            chances.append(chance)
        return chances

    def learn(self, key: Key, guess: Guess, num_before: int, drawn: Sequence[int]) -> int:
        """Compare drawn tokens with a guess, of which `num_before` tokens were right before; returns how many more are."""
        source = guess.source
        first = _first_chances(source)
        if source not in self._levels:
            self._levels[source] = [Rate(MEMORY) for _ in LEVELS]
            self._chances[source] = list(first)
        levels, chances = self._levels[source], self._chances[source]
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = Rate(OWN_MEMORY)
        num_right = 0
        for expected, token in zip(guess.tokens[num_before:], drawn):
            level = _LEVEL_OF[min(guess.match + num_before + num_right, len(_LEVEL_OF) - 1)]
            is_hit = expected == token
            levels[level].add(is_hit)
            own.add(is_hit)
            chances[level] = levels[level].mean(first[level], FIRST_WEIGHT)
            if not is_hit:
                break
            num_right += 1
        return num_right

    def forget(self, key: Key) -> None:
        self._own.pop(key, None)


def _first_chances(source: str) -> Sequence[float]:
    return MADE_CHANCES if source in MADE else FIRST_CHANCES
