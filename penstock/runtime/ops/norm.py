"""Norms over the last axis. Sums are taken in float32 whatever the numbers are stored as; weights are float32."""

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.op import operation


@operation
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


@operation
def add_rms_norm(x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds `x` to the residual stream, which is written, and returns the stream's norm."""
    stream.add_(x)
    return rms_norm.definition(stream, weight, eps)


@operation
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
