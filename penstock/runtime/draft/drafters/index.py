"""Where a run of tokens was seen before.

Positions with the same last three tokens are chained, latest first, as in a compressor's window. The longest agreement among
the first few of a chain is what a suffix automaton would find in nearly all texts, at a twentieth of its time and memory.
"""

from collections.abc import Iterable, Sequence

LONG, SHORT = 3, 2
"""Tokens that a chained match and a last resort have in common at least."""
MAX_MATCH = 32
"""Agreement beyond this is not measured."""
MAX_CANDIDATES = 12
END = -1
"""Stands between texts: no token has this id."""


class TokenIndex:
    """Texts one after the other, and every place where a pair or a triple of tokens ended.

    A place is the position after the run: what follows it is `tokens[place:]`.
    """

    __slots__ = ("_last_long", "_last_short", "_previous", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._last_long: dict[tuple[int, int, int], int] = {}
        self._last_short: dict[tuple[int, int], tuple[int, int]] = {}
        """The last place of each pair, and the one before it."""
        self._previous: list[int] = [0]
        """For each place the one before it that ends with the same three tokens; 0 for none."""
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        known, longs, shorts, previous = self.tokens, self._last_long, self._last_short, self._previous
        first, second = (END, END, *known[-2:])[-2:]
        for place, third in enumerate(tokens, len(known) + 1):
            known.append(third)
            long, short = (first, second, third), (second, third)
            previous.append(longs.get(long, 0))
            longs[long] = place
            shorts[short] = (place, shorts.get(short, (0, 0))[0])
            first, second = second, third

    def find(self, suffix: Sequence[int]) -> tuple[int, int]:
        """The place whose text before it agrees longest with the end of `suffix`, the later of equals, and how long that is;
        (0, 0) for none."""
        if len(suffix) < SHORT:
            return 0, 0
        if len(suffix) >= LONG:
            place = self._last_long.get((suffix[-3], suffix[-2], suffix[-1]), 0)
            if place:
                return self._longest(place, suffix)
        place, _ = self._last_short.get((suffix[-2], suffix[-1]), (0, 0))
        return (place, SHORT) if place else (0, 0)

    def find_earlier(self) -> tuple[int, int]:
        """As `find` for the indexed text's own end, which is not counted as found."""
        known = self.tokens
        if len(known) < SHORT:
            return 0, 0
        place = self._previous[len(known)]
        if place:
            return self._longest(place, known)
        _, place = self._last_short[(known[-2], known[-1])]
        return (place, SHORT) if place else (0, 0)

    def _longest(self, place: int, suffix: Sequence[int]) -> tuple[int, int]:
        best, longest = 0, 0
        for _ in range(MAX_CANDIDATES):
            length = self._agreement(place, suffix)
            if length > longest:
                best, longest = place, length
            place = self._previous[place]
            if not place or longest == MAX_MATCH:
                break
        return best, longest

    def _agreement(self, place: int, suffix: Sequence[int]) -> int:
        known = self.tokens
        most = min(place, len(suffix), MAX_MATCH)
        length = LONG
        while length < most and known[place - 1 - length] == suffix[-1 - length]:
            length += 1
        return length

    def after(self, place: int, most: int) -> tuple[int, ...]:
        """Up to so many tokens from a place on, none beyond the end of its text."""
        run = tuple(self.tokens[place : place + most])
        return run[: run.index(END)] if END in run else run
