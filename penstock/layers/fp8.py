"""Sublayers whose matrices are 8-bit floats. They stand in for the plain ones once a model is loaded.

What passes between them is a tensor while there are few rows, and rounded rows once there are many.
"""

from torch import Tensor, nn

from penstock.layers.linear import Linear
from penstock.layers.mlp import Gated
from penstock.layers.norm import RMSNorm
from penstock.ops.fp8 import (
    Fp8,
    gated_linear_fp8,
    linear_fp8,
    multiply_fp8,
    round_gated,
    round_normed,
    round_rows,
)
from penstock.ops.norm import add_rms_norm, rms_norm

MAX_EXACT_ROWS = 1
"""Rows up to which activations are multiplied unrounded: from two on the library's product of rounded rows is faster."""


class Fp8Linear(nn.Module):
    def __init__(self, linear: Linear) -> None:
        super().__init__()
        values, scales = round_rows(linear.weight)
        self.values = nn.Parameter(values, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias
        self.dtype = linear.weight.dtype

    @property
    def weight(self) -> Fp8:
        return Fp8(self.values, self.scales)

    def forward(self, x: Tensor | Fp8) -> Tensor:
        if isinstance(x, Fp8):
            return multiply_fp8(*x, self.weight, self.bias, self.dtype)
        if len(x) <= MAX_EXACT_ROWS:
            return linear_fp8(x, self.weight, self.bias)
        return multiply_fp8(*round_rows(x), self.weight, self.bias, self.dtype)


class Fp8Gated(nn.Module):
    """Between its two products many rows are gated and rounded at once."""

    def __init__(self, mlp: Gated) -> None:
        super().__init__()
        self.activation = mlp.activation
        self.gate_up = Fp8Linear(mlp.gate_up)
        self.down = Fp8Linear(mlp.down)

    def forward(self, x: Tensor | Fp8) -> Tensor:
        if isinstance(x, Tensor) and len(x) <= MAX_EXACT_ROWS:
            gated = gated_linear_fp8(x, self.gate_up.weight, self.gate_up.bias, self.activation)
            return self.down(gated)  # type: ignore[no-any-return]
        return self.down(round_gated(self.gate_up(x), self.activation))  # type: ignore[no-any-return]


class Fp8Norm(nn.Module):
    """A norm read by 8-bit matrices alone: many rows leave it rounded."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor | Fp8:
        if len(x) <= MAX_EXACT_ROWS:
            return rms_norm(x, self.weight, self.eps)
        return round_normed(x, None, self.weight, self.eps)

    def add(self, x: Tensor, stream: Tensor) -> Tensor | Fp8:
        if len(x) <= MAX_EXACT_ROWS:
            return add_rms_norm(x, stream, self.weight, self.eps)
        return round_normed(x, stream, self.weight, self.eps)
