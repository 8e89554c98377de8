"""The attention sublayer: joined projection, heads prepared and cached, attention, projection back."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import GQA, ModelSpec
from penstock.runtime.ops.attention import encoder_attention
from penstock.runtime.ops.cached_attention import cached_attention
from penstock.runtime.ops.kv_write import HeadNorms, split_heads


class Attention(nn.Module):
    """`number` finds the layer's cache and angles in a step."""

    def __init__(self, part: GQA, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = part
        self.number = number
        self.table = model.cache_layout().table(number)
        self.qkv = Linear(model.hidden_size, part.q_size + 2 * part.kv_size, part.qkv_bias, dtype)
        self.out = Linear(part.q_size, model.hidden_size, part.out_bias, dtype)
        self.gate = Linear(model.hidden_size, part.q_size, part.qkv_bias, dtype) if part.gated else None
        if part.qk_norm is not None:
            sizes = (part.head_dim, part.head_dim) if part.qk_norm == "head" else (part.q_size, part.kv_size)
            self.q_norm, self.k_norm = (RMSNorm(size, model.norm.eps) for size in sizes)
        self.sinks = unfilled(part.num_heads, dtype=torch.float32) if part.sinks else None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        qkv, angles, norms = self.qkv(x), step.angles[self.number], self._head_norms()
        if self.spec.causal:
            cache, layout = step.caches[self.number], step.layout_of(self.table)
            attended = cached_attention(qkv, self.spec, norms, angles, cache, layout, self.sinks)
        else:
            q, k, v = split_heads(qkv, self.spec, norms, angles)
            attended = encoder_attention(q, k, v, step.layout, self.spec)
        return self._projected(attended, x)

    def _projected(self, attended: Tensor, x: Tensor) -> Tensor:
        attended = attended.flatten(1)
        if self.gate is not None:
            attended = attended * torch.sigmoid(self.gate(x))
        return self.out(attended)  # type: ignore[no-any-return]

    def _head_norms(self) -> HeadNorms | None:
        if self.spec.qk_norm is None:
            return None
        return HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
