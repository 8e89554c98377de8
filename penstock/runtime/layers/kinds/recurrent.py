"""Sublayers that keep a state: short convolutions (LFM2), state-space layers (Mamba-2), gated delta nets (Qwen3-Next)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.layers.step import Step
from penstock.runtime.models.kinds.recurrent import GatedDelta, Mamba2, ShortConv
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.kinds.delta import DeltaInputs, delta_scan
from penstock.runtime.ops.kinds.scan import ScanInputs, causal_conv, state_scan
from penstock.runtime.ops.layout import StateLayout


class StateCache(NamedTuple):
    """One layer's states, [slots, ...] each, in float32: the last inputs of its convolution, and what it has added up."""

    inputs: Tensor
    sums: Tensor


def states_of(step: Step) -> StateLayout:
    if step.states is None:
        raise RuntimeError("a step of a model with states says where they are")
    return step.states


class ShortConvolution(nn.Module):
    def __init__(self, part: ShortConv, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = number
        self.into = Linear(model.hidden_size, 3 * part.size, part.bias, dtype)
        self.conv = unfilled(part.size, 1, part.width, dtype=dtype)
        self.conv_bias = unfilled(part.size, dtype=dtype) if part.bias else None
        self.out = Linear(part.size, model.hidden_size, part.bias, dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        before, after, inner = self.into(x).chunk(3, dim=-1)
        held = step.caches[self.number].inputs
        mixed = causal_conv(before * inner, self.conv[:, 0], self.conv_bias, held, step.layout, states_of(step))
        return self.out(after * mixed)  # type: ignore[no-any-return]


class StateSpace(nn.Module):
    """Mamba-2."""

    def __init__(self, part: Mamba2, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = part
        self.number = number
        self.into = Linear(model.hidden_size, part.inner + part.conv_size + part.num_heads, part.bias, dtype)
        self.conv = unfilled(part.conv_size, 1, part.width, dtype=dtype)
        self.conv_bias = unfilled(part.conv_size, dtype=dtype) if part.conv_bias else None
        self.step_bias = unfilled(part.num_heads, dtype=torch.float32)
        self.decay_log = unfilled(part.num_heads, dtype=torch.float32)
        self.skip = unfilled(part.num_heads, dtype=torch.float32)
        self.norm = RMSNorm(part.inner, model.norm.eps) if part.norm else None
        self.out = Linear(part.inner, model.hidden_size, part.out_bias, dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        spec, cache, states = self.spec, step.caches[self.number], states_of(step)
        gate, mixed, steps = torch.tensor_split(self.into(x), [spec.inner, spec.inner + spec.conv_size], dim=-1)
        mixed = functional.silu(causal_conv(mixed, self.conv[:, 0], self.conv_bias, cache.inputs, step.layout, states))
        size = spec.num_groups * spec.state_size
        values, keys, queries = torch.tensor_split(mixed, [spec.inner, spec.inner + size], dim=-1)
        values = values.reshape(len(x), spec.num_heads, spec.head_dim)
        keys, queries = (part.reshape(len(x), spec.num_groups, spec.state_size) for part in (keys, queries))
        steps = functional.softplus(steps.float() + self.step_bias).clamp(spec.min_step, spec.max_step)
        inputs = ScanInputs(values, keys, queries, steps)
        read = state_scan(values, inputs, -self.decay_log.exp(), cache.sums, step.layout, states, spec)
        read = (read + values.float() * self.skip[:, None]).flatten(1)
        gate = functional.silu(gate.float())
        if self.norm is None:
            read = read * gate
        elif spec.norm == "after gate":
            read = self._normed(read * gate, self.norm)
        else:
            read = self._normed(read, self.norm) * gate
        return self.out(read.to(x.dtype))  # type: ignore[no-any-return]

    def _normed(self, read: Tensor, norm: RMSNorm) -> Tensor:
        parts = read.unflatten(1, (self.spec.norm_groups, -1))  # type: ignore[no-untyped-call]
        normed = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + norm.eps)
        return normed.flatten(1) * norm.weight  # type: ignore[no-any-return]


class DeltaNet(nn.Module):
    """Gated delta nets. Each head's values are normed before the gate multiplies them."""

    def __init__(self, part: GatedDelta, model: ModelSpec, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = part
        self.number = number
        self.into = Linear(model.hidden_size, part.conv_size + part.inner + 2 * part.num_heads, False, dtype)
        self.conv = unfilled(part.conv_size, 1, part.width, dtype=dtype)
        self.step_bias = unfilled(part.num_heads, dtype=torch.float32)
        self.decay_log = unfilled(part.num_heads, dtype=torch.float32)
        self.norm = RMSNorm(part.value_dim, model.norm.eps)
        self.out = Linear(part.inner, model.hidden_size, False, dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        spec, cache, states = self.spec, step.caches[self.number], states_of(step)
        sizes = [spec.conv_size, spec.inner, spec.num_heads, spec.num_heads]
        mixed, gate, strengths, steps = torch.split(self.into(x), sizes, dim=-1)
        mixed = functional.silu(causal_conv(mixed, self.conv[:, 0], None, cache.inputs, step.layout, states))
        size = spec.num_key_heads * spec.key_dim
        queries, keys, values = torch.split(mixed, [size, size, spec.inner], dim=-1)
        queries, keys = (part.reshape(len(x), spec.num_key_heads, spec.key_dim) for part in (queries, keys))
        values = values.reshape(len(x), spec.num_heads, spec.value_dim)
        decays = -self.decay_log.exp() * functional.softplus(steps.float() + self.step_bias)
        inputs = DeltaInputs(values, keys, queries, strengths.sigmoid(), decays)
        read = delta_scan(values, inputs, cache.sums, step.layout, states, spec).to(x.dtype)
        normed = self.norm(read.reshape(-1, spec.value_dim)).view(len(x), -1)
        return self.out((normed * functional.silu(gate.float())).to(x.dtype))  # type: ignore[no-any-return]
