"""Heads that read pairs of a token and the state before it (EAGLE, multi-token prediction), whatever computes a pair.

    pair p:  token p, state of p - 1  ->  state of p, predicted  ->  token p + 1

What true pairs leave is kept by generation. Guesses go on from the last of them with states that are predicted themselves; what
those leave is written over.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from penstock.runtime.execution.heads.states import StateSource
from penstock.runtime.execution.heads.target import Chooser

MAX_KEPT = 2048
"""Pairs of a generation that are attended to; of more the older half is forgotten."""


class Pairs(Protocol):
    """What a generation's pairs left, from position `begin` on; `end` is the first pair that is not there."""

    begin: int
    end: int

    def forget_half(self) -> None:
        """Give up the older pairs."""


class Foretold(NamedTuple):
    """What the last of some pairs foretells, each [1, hidden]."""

    state: Tensor
    """For the next pair."""
    chosen_by: Tensor
    """For the output matrix."""


C = TypeVar("C", bound=Pairs)


class PairHeads(ABC, Generic[C]):
    """Guesses for rows, by states that a runner left in the store."""

    def __init__(self, choose: Chooser, token_ids: list[int] | None, store: StateSource) -> None:
        """`choose` gives places among `token_ids`, or tokens themselves where that is none."""
        self._choose = choose
        self._token_ids = token_ids
        self._store = store
        self._caches: dict[tuple[int, int], C] = {}

    @abstractmethod
    def _open(self, begin: int) -> C:
        """Room for a generation's pairs from a position on."""

    @abstractmethod
    def _compute(self, cache: C, tokens: Sequence[int], states: Tensor, ahead: int) -> Foretold:
        """Compute pairs from the cache's end, or so many behind it, on."""

    def forget(self, key: tuple[int, int]) -> None:
        self._caches.pop(key, None)

    @torch.inference_mode()
    def guess(self, key: tuple[int, int], row: int, tokens: Sequence[int], most: int) -> list[int]:
        """Up to so many tokens that may come next; none where the row's states are not there."""
        num_tokens = len(tokens)
        cache = self._caches.get(key)
        if cache is None or self._store.at(row, cache.end - 1, num_tokens - 1) is None:
            begin = self._store.begin(row)
            if begin is None or begin > num_tokens - 2:
                return []
            self.forget(key)
            cache = self._caches[key] = self._open(begin + 1)
        states = self._store.at(row, cache.end - 1, num_tokens - 1)
        if states is None or not len(states):
            return []
        predicted = self._compute(cache, tokens[cache.end :], states, 0)
        cache.end = num_tokens
        guesses: list[int] = []
        while (place := self._choose(predicted.chosen_by)[0]) >= 0:
            guesses.append(place if self._token_ids is None else self._token_ids[place])
            if len(guesses) == most:
                break
            predicted = self._compute(cache, guesses[-1:], predicted.state, len(guesses) - 1)
        if cache.end - cache.begin > MAX_KEPT:
            cache.forget_half()
        return guesses
