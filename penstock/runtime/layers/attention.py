"""The attention sublayer: joined projection, heads prepared and cached, attention, projection back."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import encoder_attention
from penstock.runtime.ops.cached_attention import cached_attention
from penstock.runtime.ops.kv_write import HeadNorms, split_heads


class Attention(nn.Module):
    """`number` finds the layer's cache and angles in a step."""

    def __init__(
        self, spec: GQA, hidden_size: int, norm_eps: float, number: int, dtype: torch.dtype, table: int = 0
    ) -> None:
        super().__init__()
        self.spec = spec
        self.number = number
        self.table = table
        """Which of a row's block tables it reads."""
        self.qkv = Linear(hidden_size, spec.q_size + 2 * spec.kv_size, spec.qkv_bias, dtype)
        self.out = Linear(spec.q_size, hidden_size, spec.out_bias, dtype)
        self.gate = Linear(hidden_size, spec.q_size, spec.qkv_bias, dtype) if spec.gated else None
        if spec.qk_norm is not None:
            sizes = (spec.head_dim, spec.head_dim) if spec.qk_norm == "head" else (spec.q_size, spec.kv_size)
            self.q_norm, self.k_norm = (RMSNorm(size, norm_eps) for size in sizes)
        self.sinks = unfilled(spec.num_heads, dtype=torch.float32) if spec.sinks else None

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
