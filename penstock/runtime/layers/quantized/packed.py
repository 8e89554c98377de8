"""Sublayers whose matrices stay in the few bits a quantized file has them in.

They stand in for the plain ones while a model is loaded.
"""

import torch
from torch import Tensor, nn

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.quantized.int8 import Int8, multiply_int8, round_int8
from penstock.runtime.ops.quantized.packed import (
    Grouped,
    PackedWords,
    arrange,
    embed_packed,
    gated_linear_packed,
    linear_packed,
    scores_packed,
)


class PackedMatrix(nn.Module):
    """A matrix on a device, and the order it takes its inputs in."""

    def __init__(self, matrix: Grouped, device: torch.device) -> None:
        super().__init__()
        words = arrange(matrix.to(device))
        self.values = nn.Parameter(words.values, requires_grad=False)
        self.scales = nn.Parameter(words.scales, requires_grad=False)
        self.minimums = None if words.minimums is None else nn.Parameter(words.minimums, requires_grad=False)
        self.order = None if matrix.order is None else nn.Parameter(matrix.order.to(device), requires_grad=False)
        self.shape = (words.group, words.bits, words.num_columns)

    @property
    def words(self) -> PackedWords:
        return PackedWords(self.values, self.scales, self.minimums, *self.shape)

    def scores(self, hidden: Tensor) -> Tensor:
        """As an output matrix, in float32."""
        return scores_packed(self._ordered(hidden), self.words)

    def _ordered(self, x: Tensor) -> Tensor:
        return x if self.order is None else x.index_select(1, self.order)


class PackedLinear(PackedMatrix):
    """`bias` has no numbers yet where it had none in the layer it stands for."""

    def __init__(self, matrix: Grouped, bias: nn.Parameter | None, device: torch.device) -> None:
        super().__init__(matrix, device)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        return linear_packed(self._ordered(x), self.words, self.bias)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        return gated_linear_packed(self._ordered(x), self.words, self.bias, activation)


class Int8Linear(nn.Module):
    """A scale a row; what the matrix is multiplied with is rounded to 8 bits too, as its file asks for."""

    def __init__(self, matrix: Grouped, bias: nn.Parameter | None, device: torch.device) -> None:
        super().__init__()
        self.values = nn.Parameter(matrix.values.flatten(1).to(device), requires_grad=False)
        self.scales = nn.Parameter(matrix.scales[:, 0].float().to(device), requires_grad=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        return multiply_int8(*round_int8(x), Int8(self.values, self.scales), self.bias, x.dtype)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        return gate(self(x), activation)

    def scores(self, hidden: Tensor) -> Tensor:
        """As an output matrix, in float32."""
        return multiply_int8(*round_int8(hidden), Int8(self.values, self.scales), None, torch.float32)


class PackedEmbedding(PackedMatrix):
    """Gives vectors of `dtype`, in which the model computes."""

    def __init__(self, matrix: Grouped, scale: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(matrix, device)
        self.scale = scale
        self.dtype = dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def forward(self, ids: Tensor) -> Tensor:
        return embed_packed(ids, self.words, self.scale, self.dtype)
