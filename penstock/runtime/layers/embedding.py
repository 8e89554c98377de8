"""From token ids to the vectors the first layer reads."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.ops.embedding import embed
from penstock.runtime.ops.linear import linear


class Embedding(nn.Module):
    def __init__(self, num_rows: int, size: int, dtype: torch.dtype, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = unfilled(num_rows, size, dtype=dtype)
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        return embed(ids, self.weight, self.scale)

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def scores(self, hidden: Tensor) -> Tensor:
        """The same matrix as an output matrix."""
        return linear(hidden, self.weight, None)
