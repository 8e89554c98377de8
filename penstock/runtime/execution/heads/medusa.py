"""Medusa heads: from the last hidden state alone each foretells the token some places further on than the target does.

    head i:  state  ->  state + SiLU(W state + b), once or more  ->  output matrix  ->  token i + 2 places on

Where the file brings no output matrices, the target's own serves all heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.execution.heads.states import StateSource
from penstock.runtime.execution.heads.target import Chooser, Projection


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    name = "medusa"
    _blocks: Sequence[Sequence[Projection]]
    """Of each head its residual blocks."""
    _choosers: Sequence[Chooser]
    """One for all heads, or one each."""
    _token_ids: list[int] | None
    _store: StateSource

    @property
    def most(self) -> int:
        return len(self._blocks)

    def forget(self, key: tuple[int, int]) -> None:
        """Nothing is kept of a generation."""

    @torch.inference_mode()
    def guess(self, key: tuple[int, int], row: int, tokens: Sequence[int], most: int) -> list[int]:
        state = self._store.at(row, len(tokens) - 2, len(tokens) - 1)
        if state is None:
            return []
        predicted = [self._predict(state, blocks) for blocks in self._blocks[:most]]
        if len(self._choosers) == 1:
            places = self._choosers[0](torch.cat(predicted))
        else:
            places = [choose(x)[0] for choose, x in zip(self._choosers, predicted)]
        known = places[: places.index(-1)] if -1 in places else places
        return known if self._token_ids is None else [self._token_ids[place] for place in known]

    def _predict(self, state: Tensor, blocks: Sequence[Projection]) -> Tensor:
        for block in blocks:
            state = state + functional.silu(block(state))
        return state
