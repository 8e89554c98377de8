"""A grammar followed token by token, for one generation.

The state is a function of the tokens it was advanced over, and of nothing else. A grammar that cannot be followed any further,
for want of room or by an error, says so in `fault`; nothing here raises for what a grammar or a model did.
"""

from collections.abc import Iterable

from llguidance import LLMatcher

from penstock.runtime.text.grammar.faults import fault_of


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
