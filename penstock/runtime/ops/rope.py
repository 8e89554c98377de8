"""Rotary positions: the frequencies of each scaling, the table of angles, the rotation itself.

Frequencies are computed in float32, expression for expression as the checkpoints' training code does it, because an error
in the last bit grows with the position.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)
from penstock.runtime.ops.op import operation


class Angles(NamedTuple):
    """Cosines and sines, [tokens or positions, dim / 2], in float32."""

    cosine: Tensor
    sine: Tensor

    def at(self, positions: Tensor) -> "Angles":
        return Angles(self.cosine.index_select(0, positions), self.sine.index_select(0, positions))


def angle_table(rope: Rope, max_context: int, device: torch.device) -> Angles:
    """The angles of positions 0 .. max_context."""
    frequencies, factor = inverse_frequencies(rope, max_context)
    angles = torch.outer(torch.arange(max_context, dtype=torch.float32), frequencies)
    return Angles((angles.cos() * factor).to(device), (angles.sin() * factor).to(device))


def inverse_frequencies(rope: Rope, max_context: int) -> tuple[Tensor, float]:
    """Radians per position of each pair, and the factor that multiplies cosines and sines."""
    scaling = rope.scaling
    match scaling:
        case LinearScaling():
            return _plain(rope.theta, rope.dim) / scaling.factor, 1.0
        case DynamicScaling():
            return _dynamic(rope, scaling, max_context), 1.0
        case YarnScaling():
            return _yarn(rope, scaling), scaling.attention_factor
        case Llama3Scaling():
            return _llama3(rope, scaling), 1.0
        case LongRopeScaling():
            is_long = max_context > scaling.original_context
            factors = torch.tensor(scaling.long_factors if is_long else scaling.short_factors, dtype=torch.float32)
            return 1.0 / (factors * rope.theta ** _exponents(rope.dim)), scaling.attention_factor
        case None:
            return _plain(rope.theta, rope.dim), 1.0


def _exponents(dim: int) -> Tensor:
    return torch.arange(0, dim, 2, dtype=torch.int64).float() / dim


def _plain(theta: float, dim: int) -> Tensor:
    frequencies: Tensor = 1.0 / (theta ** _exponents(dim))
    return frequencies


def _dynamic(rope: Rope, scaling: DynamicScaling, max_context: int) -> Tensor:
    length = max(max_context, scaling.original_context)
    growth = (scaling.factor * length / scaling.original_context) - (scaling.factor - 1)
    return _plain(rope.theta * growth ** (rope.dim / (rope.dim - 2)), rope.dim)


def _yarn(rope: Rope, scaling: YarnScaling) -> Tensor:
    """Fast pairs keep their frequency, slow ones are divided by the factor, a ramp joins them."""

    def pair_turning(num_turns: float) -> float:
        span = math.log(scaling.original_context / (num_turns * 2 * math.pi))
        return (rope.dim * span) / (2 * math.log(rope.theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    periods = rope.theta ** _exponents(rope.dim)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


def _llama3(rope: Rope, scaling: Llama3Scaling) -> Tensor:
    """Waves shorter than the high border stay, longer than the low border are stretched, between them both are mixed."""
    frequencies = _plain(rope.theta, rope.dim)
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    is_long = wavelengths > scaling.original_context / low
    is_short = wavelengths < scaling.original_context / high
    stretched = torch.where(is_long, frequencies / scaling.factor, frequencies)
    share = (scaling.original_context / wavelengths - low) / (high - low)
    mixed = (1 - share) * stretched / scaling.factor + share * stretched
    return torch.where(~is_long & ~is_short, mixed, stretched)


@operation
def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turns the pairs (d, d + dim/2) of each head of x [tokens, heads, head_dim]; numbers past `dim` are kept."""
    half = angles.cosine.shape[-1]
    cosine, sine = angles.cosine.unsqueeze(1), angles.sine.unsqueeze(1)
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    turned = (first * cosine - second * sine).to(x.dtype), (second * cosine + first * sine).to(x.dtype)
    return torch.cat((*turned, x[..., 2 * half :]), dim=-1)
