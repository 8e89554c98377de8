"""The drafter around heads that were trained on the target's hidden states (Medusa, EAGLE). The runtime computes them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.draft.drafter import NO_GUESS, Guess, Key, View
from penstock.draft.guess_cost import GuessCost

MAX_ROWS = 4
"""Generations with guesses in one step: with more of them the target's own steps leave no room for drafts."""


class DraftHeads(Protocol):
    """Computes guesses from the hidden states that the target left in a row."""

    name: str

    @property
    def most(self) -> int:
        """Longest guess, in tokens."""

    def guess(self, key: Key, row: int, tokens: Sequence[int], most: int) -> list[int]:
        """Tokens that may follow; none where the row's states are missing."""

    def forget(self, key: Key) -> None:
        """A generation has ended."""


class HeadDrafter:
    def __init__(self, heads: DraftHeads, clock: Callable[[], float]) -> None:
        self.name = heads.name
        self._heads = heads
        self._clock = clock
        self._cost = GuessCost()
        self._known: set[Key] = set()
        """Generations guessed for before: a first guess reads the prompt's states, too."""

    def seconds(self, length: int) -> float:
        return self._cost(length)

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        most = min(most, self._heads.most)
        guesses = [NO_GUESS] * len(views)
        if not most:
            return guesses
        begin_s = self._clock()
        asked = [(index, view) for index, view in enumerate(views[:MAX_ROWS]) if view.row >= 0]
        is_usual = all(view.key in self._known for _, view in asked)
        for index, view in asked:
            self._known.add(view.key)
            tokens = self._heads.guess(view.key, view.row, view.tokens, most)
            guesses[index] = Guess(tuple(tokens), self.name)
        if is_usual:
            self._cost.learn(most, self._clock() - begin_s)
        return guesses

    def finish(self, view: View) -> None:
        self._known.discard(view.key)
        self._heads.forget(view.key)
