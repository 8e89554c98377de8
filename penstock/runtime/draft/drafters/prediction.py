"""Predicted outputs: the client says what it expects, such as the file that is to come back with one change.

The answer is followed through the prediction. Where it departs, the next tokens are guessed as if one token had replaced
another; where two tokens agree with another place, the guess continues from there.
"""

from collections.abc import Sequence

from penstock.runtime.draft.drafter import NO_GUESS, Guess, Key, Lookup, View
from penstock.runtime.draft.drafters.index import MAX_MATCH, TokenIndex

MAX_TENTATIVE = 4
"""Departures in a row after which nothing is guessed until tokens agree again."""


class Follower:
    """Where in its prediction an answer stands."""

    __slots__ = ("_index", "_match", "_num_departures", "_num_seen", "_place")

    def __init__(self, prediction: Sequence[int]) -> None:
        self._index = TokenIndex(prediction)
        self._place = 0
        """Position in the prediction of the token that is expected next."""
        self._num_seen = 0
        self._match = 0
        self._num_departures = 0

    def follow(self, tokens: Sequence[int], num_prompt: int) -> None:
        """Take in what was answered since the last time."""
        expected = self._index.tokens
        for count in range(max(self._num_seen, num_prompt), len(tokens)):
            if self._place < len(expected) and tokens[count] == expected[self._place]:
                self._match += 1
                self._num_departures = 0
            else:
                self._match = 0
                self._num_departures += 1
            self._place += 1
            if self._match < 2:
                place, match = self._index.find(tokens[max(count + 1 - MAX_MATCH, num_prompt) : count + 1])
                if match > self._match:
                    self._place, self._match, self._num_departures = place, match, 0
        self._num_seen = len(tokens)

    def guess(self, most: int, name: str) -> Guess:
        if self._num_departures > MAX_TENTATIVE:
            return NO_GUESS
        return Guess(self._index.after(self._place, most), name, self._match)


class PredictionDrafter(Lookup):
    name = "prediction"

    def __init__(self) -> None:
        self._followers: dict[Key, Follower] = {}

    def finish(self, view: View) -> None:
        self._followers.pop(view.key, None)

    def _guess(self, view: View, most: int) -> Guess:
        if not view.prediction:
            return NO_GUESS
        follower = self._followers.get(view.key)
        if follower is None:
            follower = self._followers[view.key] = Follower(view.prediction)
        follower.follow(view.tokens, view.num_prompt)
        return follower.guess(most, self.name)
