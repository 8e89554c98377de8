"""The drafter around heads that were trained on the target's hidden states (Medusa, EAGLE). The runtime computes them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.runtime.draft.drafter import NO_GUESS, Guess, Key, View
from penstock.runtime.draft.guess_cost import GuessCost

MAX_ROWS = 4
"""Generations with guesses in one step: with more of them the target's own steps leave no room for drafts."""

USUAL_TOKENS = 17
"""Most states that a guess reads where the step before had guesses, too: those of its drafts and the one drawn after them."""


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
        self.seconds = GuessCost()
        self._read: dict[Key, int] = {}
        """Tokens of a generation whose states were read: a guess that has many more to read tells nothing of its usual time."""

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        most = min(most, self._heads.most)
        guesses = [NO_GUESS] * len(views)
        if not most:
            return guesses
        begin_s = self._clock()
        asked = [(index, view) for index, view in enumerate(views[:MAX_ROWS]) if view.row >= 0]
        is_usual = all(len(view.tokens) - self._read.get(view.key, 0) <= USUAL_TOKENS for _, view in asked)
        for index, view in asked:
            self._read[view.key] = len(view.tokens)
            tokens = self._heads.guess(view.key, view.row, view.tokens, most)
            guesses[index] = Guess(tuple(tokens), self.name)
        if is_usual:
            self.seconds.learn(most, self._clock() - begin_s)
        return guesses

    def finish(self, view: View) -> None:
        self._read.pop(view.key, None)
        self._heads.forget(view.key)
