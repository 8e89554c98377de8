"""Scales moved between neighbours so that a layer computes the same and rounds better: AWQ's, searched, and SmoothQuant's.

norm -> qkv, norm -> gate_up      the norm's weight is divided, columns of the matrix are multiplied
up -> down                        rows of the up half are divided, columns of down are multiplied
v -> out                          the same through attention, one scale for all query heads that share a value head
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.layer import AnyLayer, StreamLayer
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated
from penstock.runtime.layers.norm import LayerNorm, RMSNorm
from penstock.runtime.ops.quantized.int8 import round_int8
from penstock.tools.quantize.integers import IntegerEncoding
from penstock.tools.quantize.observe import ObservedLinear, SeenInputs

RATIOS = torch.linspace(0.0, 1.0, 11)
SMOOTHNESS = torch.linspace(0.3, 0.9, 7)


@dataclass(frozen=True, slots=True)
class ScaleLink:
    """A matrix whose columns are multiplied, and how what comes before is divided."""

    path: str
    matrix: Linear
    divide: Callable[[Tensor], None]
    share: Callable[[Tensor], Tensor]
    """Brings a number a column to what can be undone before."""
    is_inner: bool = False
    """What comes out stays in the block: rows of queries, keys, values and gates differ in size, and all of them matter."""


def links(layer: AnyLayer) -> Iterator[ScaleLink]:
    if isinstance(layer, StreamLayer):
        if isinstance(layer.attention_norm, RMSNorm | LayerNorm) and isinstance(layer.attention, Attention):
            yield _from_norm("attention.qkv", layer.attention.qkv, layer.attention_norm)
        if isinstance(layer.mlp_norm, RMSNorm | LayerNorm) and isinstance(layer.mlp, Gated):
            yield _from_norm("mlp.gate_up", layer.mlp.gate_up, layer.mlp_norm)
    if isinstance(layer.mlp, Gated):
        yield _from_up(layer.mlp)
    if isinstance(layer.attention, Attention):
        yield _from_values(layer.attention)


def _from_norm(path: str, matrix: Linear, norm: RMSNorm | LayerNorm) -> ScaleLink:
    def divide(scales: Tensor) -> None:
        norm.weight.div_(scales)
        if isinstance(norm, LayerNorm):
            norm.bias.div_(scales)

    return ScaleLink(path, matrix, divide, lambda each: each, is_inner=True)


def _from_up(mlp: Gated) -> ScaleLink:
    width = mlp.down.weight.shape[1]

    def divide(scales: Tensor) -> None:
        mlp.gate_up.weight[width:].div_(scales[:, None])
        if mlp.gate_up.bias is not None:
            mlp.gate_up.bias[width:].div_(scales)

    return ScaleLink("mlp.down", mlp.down, divide, lambda each: each)


def _from_values(attention: Attention) -> ScaleLink:
    spec = attention.spec
    begin = spec.q_size + spec.kv_size
    shape = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim)

    def divide(scales: Tensor) -> None:
        of_values = scales.view(shape)[:, 0].flatten()
        attention.qkv.weight[begin:].div_(of_values[:, None])
        if attention.qkv.bias is not None:
            attention.qkv.bias[begin:].div_(of_values)

    def share(numbers: Tensor) -> Tensor:
        return numbers.view(shape).amax(1, keepdim=True).expand(shape).flatten()

    return ScaleLink("attention.out", attention.out, divide, share)


@torch.inference_mode()
def scale_awq(layer: AnyLayer, seen: dict[str, ObservedLinear], encoding: IntegerEncoding) -> None:
    """Every link's scales are powers of its inputs' mean size; the power with the least error behind the matrix is taken. Rows
    that stay in the block count by their own size: else large keys decide for small values."""
    for link in (link for link in links(layer) if link.path in seen):
        weight, inputs = link.matrix.weight, seen[link.path].inputs
        hessian = inputs.hessian
        size = link.share(inputs.mean_size.clamp(min=1e-6))
        worth = (
            _squares(weight, hessian).clamp(min=1e-12).reciprocal() if link.is_inner else weight.new_ones(len(weight))
        )
        best, least = None, _error(weight, torch.ones_like(size), hessian, worth, encoding)
        for ratio in RATIOS[1:]:
            scales = size.pow(float(ratio))
            scales = scales / (scales.max() * scales.min()).sqrt()
            scales = scales.clamp(1e-4, 1e4)
            error = _error(weight, scales, hessian, worth, encoding)
            if error < least:
                best, least = scales, error
        if best is not None:
            _apply(link, best, inputs)


def _apply(link: ScaleLink, scales: Tensor, inputs: SeenInputs) -> None:
    link.divide(scales)
    link.matrix.weight.mul_(scales)
    inputs.divide(scales)


def _error(weight: Tensor, scales: Tensor, hessian: Tensor, worth: Tensor, encoding: IntegerEncoding) -> float:
    scaled = weight * scales
    grid = encoding.grid(scaled)
    numbers, zeros = grid.spread()
    off = grid.nearest(scaled).sub_(zeros).mul_(numbers).div_(scales).sub_(weight)
    return float((_squares(off, hessian) * worth).sum())


def _squares(rows: Tensor, hessian: Tensor) -> Tensor:
    """Mean squares of what comes out of each row."""
    return ((rows @ hessian) * rows).sum(1)


@torch.inference_mode()
def smooth(layer: AnyLayer, seen: dict[str, ObservedLinear]) -> None:
    """Large inputs are divided and their weights multiplied, as far as leaves the least error with both in 8 bits."""
    for link in (link for link in links(layer) if link.path in seen):
        weight, inputs = link.matrix.weight, seen[link.path].inputs
        most = link.share(inputs.most.clamp(min=1e-5))
        heaviest = link.share(weight.abs().amax(0).clamp(min=1e-5))
        ways = [(most.pow(power) / heaviest.pow(1 - power)).clamp(1e-4, 1e4) for power in SMOOTHNESS.tolist()]
        _apply(link, min(ways, key=lambda scales: _rounding_error(weight, inputs.sample, scales)), inputs)


def _rounding_error(weight: Tensor, rows: Tensor, scales: Tensor) -> float:
    """Of products of rows and a matrix, both in 8 bits under a scale a row."""
    off = _in_8_bits(rows / scales) @ _in_8_bits(weight.float() * scales).t() - rows @ weight.float().t()
    return float(off.square().mean())


def _in_8_bits(rows: Tensor) -> Tensor:
    values, steps = round_int8(rows)
    return values.float() * steps[:, None]
