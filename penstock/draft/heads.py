"""Heads trained on the target's hidden states guess: the drafter around them. What they compute is the runtime's affair."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.draft.drafter import NO_GUESS, Guess, Key, View
from penstock.draft.guess_cost import GuessCost

MAX_ROWS = 4
"""Generations that are guessed for in one step: with more of them the target's own steps are full."""


class DraftHeads(Protocol):
    """What guesses from the states that the target left in a row."""

    name: str

    @property
    def most(self) -> int:
        """Tokens it can guess in a row."""

    def guess(self, key: Key, row: int, tokens: Sequence[int], most: int) -> list[int]:
        """What may follow the tokens; nothing where the row's states are not there."""

    def forget(self, key: Key) -> None:
        """A generation has ended."""


class HeadDrafter:
    def __init__(self, heads: DraftHeads, clock: Callable[[], float]) -> None:
        self.name = heads.name
        self._heads = heads
        self._clock = clock
        self._cost = GuessCost()

    def seconds(self, length: int) -> float:
        return self._cost(length)

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        most = min(most, self._heads.most)
        guesses = [NO_GUESS] * len(views)
        if not most:
            return guesses
        begin_s = self._clock()
        for index, view in enumerate(views[:MAX_ROWS]):
            if view.row >= 0:
                tokens = self._heads.guess(view.key, view.row, view.tokens, most)
                guesses[index] = Guess(tuple(tokens), self.name)
        self._cost.learn(most, self._clock() - begin_s)
        return guesses

    def finish(self, view: View) -> None:
        self._heads.forget(view.key)
