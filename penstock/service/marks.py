"""What our engines write between the events of a stream for a router, and what a router hands to the engine that goes on.

A server that is asked with `x-penstock-relay` by a router it knows ends every write of a stream in a mark that no client sees:

    data: {...}\\n\\n            an event, or several; or lines of JSON, {...}\\n
    :t 0=17,204 1=9,-1\\n\\n    tokens by choice that the text above has taken in; empty for a write without tokens
    :u 31 12 16\\n\\n           instead of :t, once: the stream is over; tokens of prompt, answer and cache

Where a choice has ended, as with a grammar that is complete, a number that is no token stands last: `ENDED`, or `CUT` where it
was as long as it may be.

What came before a mark has been shown when the mark is there; what follows the last mark is held back. So the marks so far
say from which tokens another replica continues, in letters that have all been sent and no letter twice.

A request that goes on begins with these tokens: `x-penstock-resume: N` says that the first N bytes of the body are
these tokens, and the rest is the request as the client sent it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple


class TokenCount(NamedTuple):
    """Tokens of a request, once it is over."""

    num_prompt: int = 0
    num_output: int = 0
    num_cached: int = 0


class TokenBound(NamedTuple):
    """Tokens that money is set aside for: a request may take so many and no more."""

    num_prompt: int
    num_output: int


RELAY_HEADER = b"x-penstock-relay"
MOST_HEADER = b"x-penstock-most"
"""Tokens of prompt and answer that a gateway set aside. Beside a refusal: how many it would take."""
ACCOUNT_HEADER = b"x-penstock-account"
"""What a gateway calls the request: a bill written later than the answer says so."""
RESUME_HEADER = b"x-penstock-resume"
USAGE_HEADER = b"x-penstock-usage"
LOST_HEADER = b"x-penstock-lost"
"""Beside an error: the engine went away under a request that was in order, so another replica may well answer it."""

ENDED, CUT = -1, -2

_TOKENS = b":t "
_END = b":u "
_BREAK = b"\n\n"
_MARK = re.compile(rb"^:[tu] [^\n]*\n\n", re.MULTILINE)


def split(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Events to pass on, the marks they end in, and what has no mark yet."""
    start = _last_mark(data)
    stop = data.find(_BREAK, start) if start >= 0 else -1
    if start >= 0 and stop < 0:  # half a mark
        start = _last_mark(data[:start])
        stop = data.find(_BREAK, start)
    if start < 0:
        return b"", [], data
    head, mark, rest = data[:start], data[start:stop], data[stop + 2 :]
    if b"\n:" not in head and head[:1] != b":":
        return head, [mark], rest
    whole = data[: stop + 2]
    return _MARK.sub(b"", whole), [found[:-2] for found in _MARK.findall(whole)], rest


def _last_mark(data: bytes) -> int:
    """Where the last mark begins; -1 if there is none. No event has a line that begins as a mark does."""
    found = max(data.rfind(b"\n:t "), data.rfind(b"\n:u "))
    if found >= 0:
        return found + 1
    return 0 if data.startswith((_TOKENS, _END)) else -1


def count_of(text: bytes) -> TokenCount | None:
    """`31 12 16` as counts."""
    try:
        prompt, output, cached = map(int, text.split())
    except ValueError:
        return None
    return TokenCount(prompt, output, cached)


def bound_of(text: bytes) -> TokenBound | None:
    """`31 12` as a bound."""
    prompt, _, output = text.partition(b" ")
    if not (prompt.isdigit() and output.isdigit() and len(text) < 40):
        return None
    return TokenBound(int(prompt), int(output))


def end_of(shown: Sequence[bytes]) -> TokenCount | None:
    """The counts in the last mark; None if the stream has not ended."""
    if not shown or not shown[-1].startswith(_END):
        return None
    return count_of(shown[-1][len(_END) :])


def tokens_of(shown: Sequence[bytes]) -> dict[int, list[int]]:
    """Tokens by choice that all these marks list."""
    found: dict[int, list[int]] = {}
    for mark in shown:
        if mark.startswith(_TOKENS):
            for part in mark[len(_TOKENS) :].split():
                choice, _, ids = part.partition(b"=")
                found.setdefault(int(choice), []).extend(map(int, ids.split(b",")))
    return found


def num_tokens(shown: Sequence[bytes]) -> int:
    return sum(token >= 0 for tokens in tokens_of(shown).values() for token in tokens)


def mark_of(tokens: Sequence[tuple[int, Sequence[int]]]) -> bytes:
    """After a write that took in these tokens, by choice."""
    return _TOKENS + _listed(tokens) + _BREAK


def end_mark(count: TokenCount) -> bytes:
    """After the last write."""
    return b":u %d %d %d\n\n" % count


def resumed_tokens(prefix: bytes) -> dict[int, list[int]]:
    """Tokens by choice that a request goes on after; raises ValueError for what is no list of them."""
    found = tokens_of([_TOKENS + prefix])
    if any(choice < 0 or min(ids) < CUT or min(ids[:-1], default=0) < 0 for choice, ids in found.items()):
        raise ValueError("a token has no sign")
    return found


def _listed(tokens: Sequence[tuple[int, Sequence[int]]]) -> bytes:
    return b" ".join(b"%d=%b" % (choice, b",".join(b"%d" % one for one in ids)) for choice, ids in tokens if ids)


def resumed(shown: Sequence[bytes]) -> bytes:
    """All marks as one, for the replica that goes on."""
    return _listed(list(tokens_of(shown).items()))
