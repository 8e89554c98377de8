"""Rows of a matrix looked up by number."""

from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.op import operation


@operation
def embed(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    rows = functional.embedding(ids, weight)
    return rows if scale == 1.0 else rows * scale
