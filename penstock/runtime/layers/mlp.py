"""Feed-forward sublayers that every token passes."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.models.spec import GatedMLP, PlainMLP
from penstock.runtime.ops.activation import activate


class Gated(nn.Module):
    def __init__(self, spec: GatedMLP, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = spec.activation
        self.gate_up = Linear(hidden_size, 2 * spec.width, spec.bias, dtype)
        self.down = Linear(spec.width, hidden_size, spec.bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate_up.gated(x, self.activation))  # type: ignore[no-any-return]


class Ungated(nn.Module):
    def __init__(self, spec: PlainMLP, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = spec.activation
        self.up = Linear(hidden_size, spec.width, spec.bias, dtype)
        self.down = Linear(spec.width, hidden_size, spec.bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(activate(self.up(x), self.activation))  # type: ignore[no-any-return]
