"""Stop strings: where a text ends, found while it is still being written.

`cut_at_stop` is the definition. `StopMatcher` gives the same cut from pieces of the text, in time proportional to the
text alone. Knows nothing of tokens.
"""

import re
from collections import deque
from collections.abc import Sequence

from penstock.errors import RequestError

MAX_STOPS = 4096
MAX_STOP_CHARACTERS = 1 << 16
"""In all stop strings of a request together."""


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the stop string, and which one; the whole text and None where there is none.

    The first character that completes any stop string decides. Of the stop strings that it completes, the longest is
    taken, which is the one that starts earliest.
    """
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if stop and text.endswith(stop, 0, end)]
        if completed:
            longest = max(completed, key=len)
            return text[: end - len(longest)], longest
    return text, None


class StopSet:
    """Stop strings prepared for matching: an automaton over their characters. Immutable; choices may share one.

    A state is a prefix of some stop string. It has the length of the prefix (`depths`), the longest stop string that
    ends there (`matches`), and the state to fall back to when the next character does not continue it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if len(stops) > MAX_STOPS:
            raise RequestError(f"stop has {len(stops)} strings; send at most {MAX_STOPS}", param="stop")
        if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
            raise RequestError(
                f"the stop strings have more than {MAX_STOP_CHARACTERS} characters together; send shorter ones",
                param="stop",
            )
        if not all(stops):
            raise RequestError("stop has an empty string, which would match everywhere; remove it", param="stop")
        self.edges: list[dict[str, int]] = [{}]
        self.depths = [0]
        self.matches: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self.fallbacks = self._fallbacks()
        self.first_character = re.compile("[" + "".join(map(re.escape, self.edges[0])) + "]") if stops else None

    def __bool__(self) -> bool:
        return len(self.edges) > 1

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self.edges[state].get(character)
            if following is None:
                following = self.edges[state][character] = len(self.edges)
                self.edges.append({})
                self.depths.append(self.depths[state] + 1)
                self.matches.append(None)
            state = following
        self.matches[state] = stop

    def _fallbacks(self) -> list[int]:
        """For each state, the longest other prefix that ends the same way; shorter states first."""
        fallbacks = [0] * len(self.edges)
        queue = deque(self.edges[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.edges[state].items():
                queue.append(following)
                back = fallbacks[state]
                while back and character not in self.edges[back]:
                    back = fallbacks[back]
                fallbacks[following] = self.edges[back].get(character, 0)
                self.matches[following] = self.matches[following] or self.matches[fallbacks[following]]
        return fallbacks


class StopMatcher:
    """Finds the first stop string in a text given in pieces.

    `feed` returns the text that is now certain to come before any stop string. What is held back is the longest end of
    the text that is the beginning of a stop string, never more.
    """

    __slots__ = ("_held", "_held_from", "_include_stop", "_num_held", "_state", "_stops", "matched", "rest")

    def __init__(self, stops: Sequence[str] | StopSet, *, include_stop: bool = False) -> None:
        self._stops = stops if isinstance(stops, StopSet) else StopSet(stops)
        self._include_stop = include_stop
        self._state = 0
        # Held text is a queue of pieces, the first of them already emitted up to `_held_from`: nothing is copied twice.
        self._held: deque[str] = deque()
        self._held_from = 0
        self._num_held = 0
        self.matched: str | None = None
        """The stop string that ended the text."""
        self.rest = ""
        """What followed it in the piece that completed it."""

    def feed(self, delta: str) -> str:
        """Text safe to emit. After a match, always empty."""
        if self.matched is not None or not delta:
            return ""
        if not self._stops:
            return delta
        end, matched = self._scan(delta)
        if matched is not None:
            self.matched, self.rest = matched, delta[end:]
            self._hold(delta[:end])
            emitted = self._release(self._num_held - (0 if self._include_stop else len(matched)))
            self._held.clear()
            self._num_held = self._held_from = 0
            return emitted
        keep = self._stops.depths[self._state]
        if not keep and not self._num_held:
            return delta
        self._hold(delta)
        return self._release(self._num_held - keep)

    def flush(self) -> str:
        """The held text, when nothing follows."""
        return self._release(self._num_held)

    def _scan(self, delta: str) -> tuple[int, str | None]:
        """Run the automaton: where it stopped reading, and the stop string completed there."""
        stops, state = self._stops, self._state
        edges, fallbacks, first = stops.edges, stops.fallbacks, stops.first_character
        position, length = 0, len(delta)
        while position < length:
            if not state and first is not None:
                # Nothing is under way: skip to the next character that can begin a stop string.
                found = first.search(delta, position)
                if found is None:
                    break
                position = found.start()
            character = delta[position]
            while state and character not in edges[state]:
                state = fallbacks[state]
            state = edges[state].get(character, 0)
            position += 1
            if stops.matches[state] is not None:
                break
        self._state = state
        return position, stops.matches[state]

    def _hold(self, text: str) -> None:
        if text:
            self._held.append(text)
            self._num_held += len(text)

    def _release(self, count: int) -> str:
        self._num_held -= count
        parts = []
        while count > 0:
            piece, start = self._held[0], self._held_from
            end = min(len(piece), start + count)
            parts.append(piece[start:end])
            count -= end - start
            self._held_from = end
            if end == len(piece):
                self._held.popleft()
                self._held_from = 0
        return "".join(parts)
