"""Attention that forgets, over the parameters of the attention it stands in for."""

import torch
from torch import Tensor

from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.kinds.recurrent import states_of
from penstock.runtime.layers.step import Step
from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.kinds.bounded import bounded_attention
from penstock.runtime.ops.kv_write import split_heads
from penstock.runtime.ops.rope import Angles, angle_table


class BoundedAttention(Attention):
    def __init__(self, part: Bounded, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__(part.attention, model, number, dtype)
        self.bound = part
        self._table: Angles | None = None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.spec, self._head_norms(), None)
        cache, states = step.caches[self.number], states_of(step)
        return self._projected(bounded_attention(q, k, v, cache, step.layout, states, self.bound, self._angles(q)), x)

    def _angles(self, q: Tensor) -> Angles | None:
        """As many as there are entries: places are counted among what is kept, so no text is too long for them."""
        if self._table is None and self.spec.rope is not None:
            self._table = angle_table(self.spec.rope, self.bound.capacity, q.device)
        return self._table
