"""Prompt lookup: what followed the last tokens when they came before in the same request."""

from penstock.runtime.draft.drafter import NO_GUESS, Guess, Key, Lookup, View
from penstock.runtime.draft.drafters.index import TokenIndex


class NgramDrafter(Lookup):
    """An index a generation, brought up to date when a guess is asked for."""

    name = "ngram"

    def __init__(self) -> None:
        self._indices: dict[Key, TokenIndex] = {}

    def finish(self, view: View) -> None:
        self._indices.pop(view.key, None)

    def _guess(self, view: View, most: int) -> Guess:
        index = self._indices.get(view.key)
        if index is None:
            index = self._indices[view.key] = TokenIndex()
        index.extend(view.tokens[len(index) :])
        place, match = index.find_earlier()
        return Guess(index.after(place, most), self.name, match) if place else NO_GUESS
