"""Suffix lookup in recent answers of the same tenant: agents, forms and templates repeat what they answered before.

Tenants never see each other's answers, not even through the time that a guess saves. Memory is bounded over all tenants.
"""

from collections import OrderedDict
from collections.abc import Sequence

from penstock.runtime.draft.drafter import NO_GUESS, Guess, Lookup, View
from penstock.runtime.draft.drafters.index import END, MAX_MATCH, TokenIndex

MAX_TOKENS = 200_000
"""Tokens indexed over all tenants, about 256 bytes each."""
MAX_TENANT_TOKENS = 32_000


class Answers:
    """A tenant's latest answers: two indices, the older dropped when the younger is full."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young, self._old = TokenIndex(), TokenIndex()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, tokens: Sequence[int]) -> None:
        self._young.extend((*tokens, END))
        if len(self._young) > MAX_TENANT_TOKENS // 2:
            self._old, self._young = self._young, TokenIndex()

    def guess(self, suffix: Sequence[int], most: int, name: str) -> Guess:
        finds = [(index, *index.find(suffix)) for index in (self._young, self._old)]
        index, place, match = max(finds, key=lambda found: found[2])
        return Guess(index.after(place, most), name, match) if place else NO_GUESS


class SuffixDrafter(Lookup):
    name = "suffix"

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._tenants: OrderedDict[str, Answers] = OrderedDict()
        """The one that answered last stands last."""
        self.num_tokens = 0

    def finish(self, view: View) -> None:
        """Keep what was answered, and forget the tenants that have been silent longest if there is too much."""
        answers = self._tenants.pop(view.tenant, None) or Answers()
        self._tenants[view.tenant] = answers
        self.num_tokens -= len(answers)
        answers.add(view.tokens[view.num_prompt :][:MAX_TENANT_TOKENS])
        self.num_tokens += len(answers)
        while self.num_tokens > self._max_tokens:
            _, silent = self._tenants.popitem(last=False)
            self.num_tokens -= len(silent)

    def _guess(self, view: View, most: int) -> Guess:
        answers = self._tenants.get(view.tenant)
        return NO_GUESS if answers is None else answers.guess(view.tokens[-MAX_MATCH:], most, self.name)
