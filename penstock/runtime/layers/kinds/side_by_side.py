"""Two mixers that read the same: what they give is added."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.kinds.recurrent import StateCache, StateSpace
from penstock.runtime.layers.step import Step
from penstock.runtime.models.kinds.side_by_side import SideBySide
from penstock.runtime.models.spec import ModelSpec


class BothCaches(NamedTuple):
    pages: Any
    states: StateCache


class Mixers(nn.Module):
    def __init__(self, part: SideBySide, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = number
        self.attention = Attention(part.attention, model, number, dtype)
        self.state_space = StateSpace(part.state_space, model, number, dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        cache = step.caches[self.number]
        attended = self.attention(x, step._replace(caches={self.number: cache.pages}))
        return attended + self.state_space(x, step._replace(caches={self.number: cache.states}))  # type: ignore[no-any-return]
