"""Prompts that nearly hit the prefix cache: where the first token differed from an earlier prompt, why, and what it cost.

A prompt is held against the last ones: the one it shares most with, before and after the place where they part. What differs
there is read once to name its kind, and only counts and positions are kept; words are kept where that was asked for.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RUN = 16
"""Tokens in a row that must be alike again for two prompts to have met."""
NEAR = 96
"""Tokens of a changed part, at most; a longer one is looked for by its first words."""
MAX_KEPT = 48
MAX_TOKENS = 16_384
"""Of a prompt that are looked at."""
AROUND = 12
"""Tokens beside a difference that are read to tell its kind."""
MOSTLY = 0.75
"""Of a part, what must come later for the two to be the same in another order."""
FAR = 4096
"""How far off a part that was cut or put in is looked for."""

REMEDIES: Mapping[str, str] = {
    "date or time": "put the date after everything that stays the same, or give the day alone: it then changes once a day",
    "id": "leave ids of requests, sessions and users out of the prompt, or put them at its end",
    "number": "put counters and figures that change behind what stays the same",
    "spacing or case": "make prompts in one place: a space, a line end or a capital letter is another token",
    "order": "sort tools, examples and documents the same way every time (by name, not by a set's order)",
    "name": "put what is personal after the instructions, or into the user's own message",
    "system prompt": "keep one text of the instructions; versions of it are caches of their own",
    "history cut": "drop old turns in large steps, or summarise them, instead of one turn each time",
    "inserted": "put retrieved texts after the history, not before it",
    "namespace": "requests of other tenants or cache salts share nothing; give those that may share the same cache_salt",
    "evicted": "the beginning was computed before and has left the cache: more --kv-memory, --kv fp8 or int8, or pin it",
}
"""What to do, by kind of cause."""
CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,2}[:h]\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\b(19|20)\d\d\b"
    r"|\b(mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(january|february|march|april|june|july|august|september|october"
    r"|november|december|jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec)\b\.? ?\d|\b(today|date|time|now)\b.{0,12}\d",
    re.IGNORECASE,
)
NAMED_ID = re.compile(r"\b(id|uuid|guid|session|request|trace|ticket|token|nonce|key)\b\W{0,4}[\w-]*\d", re.IGNORECASE)
HEX_ID = re.compile(r"\b(?=[0-9a-f-]*\d)(?=[0-9a-f-]*[a-f])[0-9a-f]{6,}(-[0-9a-f]{2,})*\b", re.IGNORECASE)
PERSON = re.compile(r"\b(user|name|customer|hello|hi|dear|you are talking to|employee|account)\b", re.IGNORECASE)


class NearMiss(NamedTuple):
    """A prompt that an earlier one would have helped, but for a few tokens."""

    cause: str
    position: int
    """Of the first token that differed."""
    num_prompt: int
    num_cached: int
    num_lost: int
    """Tokens behind the difference that are alike again: what the cache could have given besides."""
    own: str = ""
    """What stands there, and what stood there: only where words were asked for."""
    earlier: str = ""


@dataclass(slots=True)
class CauseCount:
    count: int = 0
    num_lost: int = 0
    first_position: int = 1 << 60
    last: NearMiss | None = None

    def take(self, miss: NearMiss) -> None:
        self.count += 1
        self.num_lost += miss.num_lost
        self.first_position = min(self.first_position, miss.position)
        self.last = miss


Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class PrefixWatch:
    """`decode` reads a few tokens; `keeps_words` keeps what differed, which is text of users."""

    block_size: int
    decode: Decode
    keeps_words: bool = False
    causes: dict[str, CauseCount] = field(default_factory=dict)
    num_prompts: int = 0
    num_tokens: int = 0
    num_cached: int = 0
    _kept: deque[tuple[str, tuple[int, ...]]] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))

    def note(self, prompt: Sequence[int], namespace: str, num_cached: int) -> NearMiss | None:
        """A prompt was admitted, of which the cache gave so many tokens."""
        tokens = tuple(prompt[:MAX_TOKENS])
        self.num_prompts += 1
        self.num_tokens += len(prompt)
        self.num_cached += num_cached
        miss = self._near_miss(tokens, namespace, num_cached)
        self._kept.append((namespace, tokens))
        if miss is not None:
            self.causes.setdefault(miss.cause, CauseCount()).take(miss)
        return miss

    def _near_miss(self, tokens: tuple[int, ...], namespace: str, num_cached: int) -> NearMiss | None:
        found = (self._against(tokens, other, namespace == its, num_cached) for its, other in reversed(self._kept))
        return max(filter(None, found), key=lambda miss: miss.num_lost, default=None)

    def _against(self, own: tuple[int, ...], other: tuple[int, ...], shares: bool, num_cached: int) -> NearMiss | None:
        place = _first_difference(own, other)
        whole = (place - 1) // self.block_size * self.block_size if place == len(own) else place
        could = whole // self.block_size * self.block_size
        if could - num_cached >= self.block_size:
            cause = "evicted" if shares else "namespace"
            return NearMiss(cause, num_cached, len(own), num_cached, could - num_cached)
        if not shares or place >= min(len(own), len(other)):
            return None
        met = _meeting(own, other, place)
        if met is None:
            return None
        own_end, other_end, num_alike, _ = met
        if num_alike < self.block_size:
            return None
        cause = self._cause(own, other, place, met)
        words = [self.decode(side[place:end][:NEAR]) for side, end in ((own, own_end), (other, other_end))]
        if not self.keeps_words:
            words = ["", ""]
        return NearMiss(cause, place, len(own), num_cached, num_alike, *words)

    def _cause(self, own: tuple[int, ...], other: tuple[int, ...], place: int, met: "AlikeAgain") -> str:
        num_own, num_other = met.own_end - place, met.other_end - place
        if met.is_reordered:
            return "order"
        if num_own == 0 and num_other > NEAR:
            return "history cut"
        if num_other == 0 and num_own > NEAR:
            return "inserted"
        begin = max(place - AROUND, 0)
        mine, theirs = (
            self.decode(side[begin : end + 4]) for side, end in ((own, met.own_end), (other, met.other_end))
        )
        return _kind_of(mine, theirs)

    def as_data(self) -> dict[str, Any]:
        """Counts and positions; words only where they were kept."""
        rows = []
        for cause, one in sorted(self.causes.items(), key=lambda pair: -pair[1].num_lost):
            row: dict[str, Any] = {
                "cause": cause,
                "count": one.count,
                "num_lost": one.num_lost,
                "first_position": one.first_position,
                "remedy": REMEDIES[cause],
            }
            if self.keeps_words and one.last is not None:
                row |= {"own": one.last.own, "earlier": one.last.earlier}
            rows.append(row)
        total = {"num_prompts": self.num_prompts, "num_tokens": self.num_tokens, "num_cached": self.num_cached}
        return total | {"causes": rows}


class AlikeAgain(NamedTuple):
    """Where two prompts are alike again after a difference, and for how long."""

    own_end: int
    other_end: int
    num_alike: int
    is_reordered: bool = False


def _first_difference(own: Sequence[object], other: Sequence[object]) -> int:
    """By halves: slices are compared by the interpreter, not one by one."""
    low, high = 0, min(len(own), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if own[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _meeting(own: tuple[int, ...], other: tuple[int, ...], place: int) -> AlikeAgain | None:
    """The longest stretch that both go on with. Texts repeat themselves, so the first run alike may be the wrong one."""
    starts = _runs(other, place, FAR)
    best, last = None, min(len(own) - RUN + 1, place + FAR)
    for at in range(place, last if starts else place):
        there = starts.get(own[at : at + RUN])
        if there is None:
            continue
        length = RUN + _first_difference(own[at + RUN :], other[there + RUN :])
        if best is None or length > best.num_alike:
            best = AlikeAgain(at, there, length)
        last = min(last, at + NEAR)
        if at >= last:
            break
    return None if best is None else _reordered(own, other, place, best) or best


def _reordered(own: tuple[int, ...], other: tuple[int, ...], place: int, met: AlikeAgain) -> AlikeAgain | None:
    """What was skipped on one side comes later on the other: the same parts in another order."""
    skipped = [(other, met.other_end, own, met.own_end), (own, met.own_end, other, met.other_end)]
    for side, end, opposite, behind in skipped:
        if end - place < 2 * RUN:
            continue
        later = _runs(opposite, behind, FAR)
        places = range(place, end - RUN + 1)
        if sum(side[at : at + RUN] in later for at in places) >= MOSTLY * len(places):
            return AlikeAgain(met.own_end, met.other_end, met.num_alike + end - place, is_reordered=True)
    return None


def _runs(tokens: tuple[int, ...], begin: int, most: int) -> dict[tuple[int, ...], int]:
    """Where each run of tokens begins first."""
    found: dict[tuple[int, ...], int] = {}
    for at in range(begin, min(len(tokens) - RUN + 1, begin + most)):
        found.setdefault(tokens[at : at + RUN], at)
    return found


def _kind_of(mine: str, theirs: str) -> str:
    """What differs, by what stands there with a few words around it."""
    if " ".join(mine.split()).casefold() == " ".join(theirs.split()).casefold():
        return "spacing or case"
    differing = [_differing(mine, theirs), _differing(theirs, mine)]
    has_digits = any(letter.isdigit() for text in differing for letter in text)
    if has_digits and all(HEX_ID.search(text) or NAMED_ID.search(text) for text in (mine, theirs)):
        return "id"
    if all(CLOCK.search(text) for text in (mine, theirs)):
        return "date or time"
    if has_digits:
        return "number"
    if all(PERSON.search(text) for text in (mine, theirs)) and all(len(text.split()) <= 4 for text in differing):
        return "name"
    return "system prompt"


def _differing(mine: str, theirs: str) -> str:
    """The words of one that the other does not have at the same place, from the front and from the back."""
    own, other = mine.split(), theirs.split()
    front = _first_difference(own, other)
    back = _first_difference(own[front:][::-1], other[front:][::-1])
    return " ".join(own[front : len(own) - back])
