"""A grammar followed token by token, for one generation.

The state is a function of the tokens it was advanced over, and of nothing else. A grammar that cannot be followed any further,
for want of room or by an error, says so in `fault`; nothing here raises for what a grammar or a model did.
"""

import re
from collections.abc import Iterable

from llguidance import LLMatcher

from penstock.errors import RequestError

_TOO_LARGE = ("too big", "too large", "too complex", "limit exceeded", "too many", "fuel")
_KEYS = re.compile(r"Unimplemented keys: \[(.*?)\]")


class GrammarMatcher:
    __slots__ = ("_kind", "goes_back", "grammar", "native")

    def __init__(self, matcher: LLMatcher, kind: str, *, grammar: bytes = b"", goes_back: bool = True) -> None:
        self.native = matcher
        """The grammar engine's own object."""
        self._kind = kind
        self.grammar = grammar
        """Digest of the source: matchers with the same one share what the grammar engine learns of it."""
        self.goes_back = goes_back
        """It can be advanced over drafts and rolled back. A grammar that counts tokens cannot."""

    def fork(self) -> "GrammarMatcher":
        """A copy of the state, which continues independently."""
        return GrammarMatcher(self.native.deep_copy(), self._kind, grammar=self.grammar, goes_back=self.goes_back)

    def advance(self, token_ids: Iterable[int]) -> None:
        self.native.consume_tokens(list(token_ids))

    @property
    def is_over(self) -> bool:
        """The text is complete and nothing may follow."""
        return bool(self.native.is_stopped())

    @property
    def fault(self) -> str:
        """Why the grammar cannot be followed any further; empty if it can."""
        if not self.native.is_error():
            return ""
        return str(fault_of(self.native.get_error(), self._kind))

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next, whatever the model says."""
        return tuple(self.native.compute_ff_tokens())


def fault_of(message: str, kind: str) -> RequestError:
    """The client's error for a message of the grammar engine, which names the fault and the way out."""
    is_schema = kind.startswith("json_schema")
    code = "invalid_json_schema" if is_schema else "invalid_grammar"
    noun = "schema" if is_schema else "grammar"
    keys = _KEYS.search(message)
    if keys is not None:
        return RequestError(f"the schema uses {keys[1]}, which cannot be held to; remove it", code=code)
    first = _first_line(message)
    if any(sign in message for sign in _TOO_LARGE):
        return RequestError(f"the {noun} is too large ({first}); make it smaller", code="grammar_too_large")
    if message.startswith("NoExtension"):
        return RequestError(f"the {noun} allows no text at all; loosen it", code=code)
    return RequestError(f"the {noun} cannot be used: {first}", code=code)


def _first_line(message: str) -> str:
    """The engine shows where it stopped on further lines; of a regular expression it tells what is wrong on the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reported = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    first = re.sub(r"^at \d+\(\d+\): ", "", lines[0]) if lines else "it is malformed"
    return (reported or first)[:240]
