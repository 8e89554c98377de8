"""Matrices of 8-bit floats (E4M3), one scale for each row, and products with them.

Activations are rounded to 8-bit floats too, each row by its own scale, so that both sides go through the 8-bit matrix units
and a row's result does not depend on how many others there are.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.norm import rms_norm
from penstock.runtime.ops.op import operation

MOST = 448.0
"""The largest E4M3 number."""
LEAST = 1e-12
"""A row smaller than this counts as this large, so that its scale is never zero."""


class Fp8(NamedTuple):
    """Row r is scales[r] * values[r]: values [rows, columns] in E4M3, scales [rows] in float32."""

    values: Tensor
    scales: Tensor


def _round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(17)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 48), (5, 256), (3, 1000)):
            x = torch.randn(shape, generator=generator, device=device) * 3
            x[-1] *= len(x) - 1  # a row of zeros
            yield (x.to(dtype),)


@operation(_round_examples)
def round_rows(x: Tensor) -> Fp8:
    """Numbers [rows, columns] rounded to 8-bit floats by each row's largest."""
    wide = x.float()
    most = wide.abs().amax(-1).clamp(min=LEAST)
    inverse = most.new_tensor(MOST) / most  # not MOST / most, which torch makes of a reciprocal: rounded twice
    return Fp8((wide * inverse[:, None]).to(torch.float8_e4m3fn), most / MOST)


def _gated_round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    """Gates of whole numbers: no rounding of theirs decides between two 8-bit floats."""
    generator = torch.Generator(device).manual_seed(18)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 96), (5, 512)):
            pairs = torch.full(shape, 7.0, device=device)
            pairs[:, shape[1] // 2 :] = torch.randint(
                -8, 8, (shape[0], shape[1] // 2), generator=generator, device=device
            )
            yield pairs.to(dtype), "swiglu_clamped"


@operation(_gated_round_examples)
def round_gated(gate_up: Tensor, activation: Activation) -> Fp8:
    """What the gate of a pair lets through, rounded."""
    return round_rows.definition(gate(gate_up, activation))


def _normed_round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(20)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 64), (5, 576)):
            x, stream = torch.randn((2, *shape), generator=generator, device=device).to(dtype) * 3
            weight = torch.rand(shape[-1], generator=generator, device=device) + 0.5
            yield x, stream, weight, 1e-5
            yield x, None, weight, 1e-5


@operation(_normed_round_examples)
def round_normed(x: Tensor, stream: Tensor | None, weight: Tensor, eps: float) -> Fp8:
    """The RMS norm of x, rounded. Where there is a residual stream x is added to it, and the sum is what is normed."""
    normed = x if stream is None else stream.add_(x)
    return round_rows.definition(rms_norm.definition(normed, weight, eps))


def _linear_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(19)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for tokens, size, num_out in ((1, 64, 96), (1, 1000, 20), (6, 96, 40), (20, 128, 48)):
            x = torch.randn((tokens, size), generator=generator, device=device).to(dtype)
            weight = torch.randn((num_out, size), generator=generator, device=device) * size**-0.5
            yield x, round_rows(weight), None
            yield x, round_rows(weight), weight[:, 0].contiguous().to(dtype)


def _multiply_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, bias in _linear_examples(device):
        yield *round_rows(x), weight, bias, x.dtype


@operation(_multiply_examples)
def multiply_fp8(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rounded rows times the matrix, the result in `dtype`."""
    product = (values.float() @ weight.values.float().t()) * scales[:, None] * weight.scales
    return (product if bias is None else product + bias).to(dtype)
