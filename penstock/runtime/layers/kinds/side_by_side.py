"""Two mixers that read the same: what they give is added."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.kinds.recurrent import StateCache, StateSpace
from penstock.runtime.layers.step import Step
from penstock.runtime.models.kinds.side_by_side import SideBySide
from penstock.runtime.models.spec import only_gqa


class BothCaches(NamedTuple):
    pages: Any
    states: StateCache


class Mixers(nn.Module):
    def __init__(
        self, spec: SideBySide, hidden_size: int, norm_eps: float, number: int, dtype: torch.dtype, table: int
    ) -> None:
        super().__init__()
        self.number = number
        attention = only_gqa(spec.attention, "read beside a state")
        self.attention = Attention(attention, hidden_size, norm_eps, number, dtype, table)
        self.state_space = StateSpace(spec.state_space, hidden_size, norm_eps, number, dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        cache = step.caches[self.number]
        attended = self.attention(x, step._replace(caches={self.number: cache.pages}))
        return attended + self.state_space(x, step._replace(caches={self.number: cache.states}))  # type: ignore[no-any-return]
