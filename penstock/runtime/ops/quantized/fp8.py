"""Matrices of 8-bit floats (E4M3), one scale for each row, and products with them.

Activations are rounded to 8-bit floats too, each row by its own scale, so that both sides go through the 8-bit matrix units
and a row's result does not depend on how many others there are.
"""

from typing import NamedTuple

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


@operation
def round_rows(x: Tensor) -> Fp8:
    """Numbers [rows, columns] rounded to 8-bit floats by each row's largest."""
    wide = x.float()
    most = wide.abs().amax(-1).clamp(min=LEAST)
    inverse = most.new_tensor(MOST) / most  # not MOST / most, which torch makes of a reciprocal: rounded twice
    return Fp8((wide * inverse[:, None]).to(torch.float8_e4m3fn), most / MOST)


@operation
def round_gated(gate_up: Tensor, activation: Activation) -> Fp8:
    """What the gate of a pair lets through, rounded."""
    return round_rows.definition(gate(gate_up, activation))


@operation
def round_normed(x: Tensor, stream: Tensor | None, weight: Tensor, eps: float) -> Fp8:
    """The RMS norm of x, rounded. Where there is a residual stream x is added to it, and the sum is what is normed."""
    normed = x if stream is None else stream.add_(x)
    return round_rows.definition(rms_norm.definition(normed, weight, eps))


@operation
def multiply_fp8(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rounded rows times the matrix, the result in `dtype`."""
    product = (values.float() @ weight.values.float().t()) * scales[:, None] * weight.scales
    return (product if bias is None else product + bias).to(dtype)
