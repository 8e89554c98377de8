"""Parameters before they have numbers: a shape and a type for the loader to fill."""

import torch
from torch import nn


def unfilled(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """Takes no memory; `runtime.load` puts a tensor of this shape and type in its place."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
