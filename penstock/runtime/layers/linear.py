"""A weight matrix and perhaps a bias."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.linear import gated_linear, linear


class Linear(nn.Module):
    def __init__(self, in_size: int, out_size: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = unfilled(out_size, in_size, dtype=dtype)
        self.bias = unfilled(out_size, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        """The first half of the outputs gates the second."""
        return gated_linear(x, self.weight, self.bias, activation)

    def scores(self, hidden: Tensor) -> Tensor:
        """As an output matrix."""
        return linear(hidden, self.weight, None)
