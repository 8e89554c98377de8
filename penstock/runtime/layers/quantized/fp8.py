"""Sublayers whose matrices are 8-bit floats. They stand in for the plain ones once a model is loaded.

What reaches a matrix is rounded where it is made: by the norm before it, or as it leaves the gate.
"""

from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.ops.quantized.fp8 import Fp8, multiply_fp8, round_gated, round_normed, round_rows


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
        rounded = x if isinstance(x, Fp8) else round_rows(x)
        return multiply_fp8(*rounded, self.weight, self.bias, self.dtype)


class Fp8Gated(nn.Module):
    """Between its two products rows are gated and rounded at once."""

    def __init__(self, mlp: Gated) -> None:
        super().__init__()
        self.activation = mlp.activation
        self.gate_up = Fp8Linear(mlp.gate_up)
        self.down = Fp8Linear(mlp.down)

    def forward(self, x: Tensor | Fp8) -> Tensor:
        return self.down(round_gated(self.gate_up(x), self.activation))  # type: ignore[no-any-return]


class Fp8Norm(nn.Module):
    """A norm read by 8-bit matrices alone: rows leave it rounded."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Fp8:
        return round_normed(x, None, self.weight, self.eps)

    def add(self, x: Tensor, stream: Tensor) -> Fp8:
        return round_normed(x, stream, self.weight, self.eps)
