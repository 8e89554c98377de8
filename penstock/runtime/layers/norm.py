"""Norms and the residual stream they read. Weights stay in float32."""

import torch
from torch import Tensor, nn

from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.models.spec import Norm
from penstock.runtime.ops.norm import add_rms_norm, layer_norm, rms_norm


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = unfilled(size, dtype=torch.float32)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, stream: Tensor) -> Tensor:
        """Adds x to the residual stream and norms the sum."""
        return add_rms_norm(x, stream, self.weight, self.eps)


class LayerNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = unfilled(size, dtype=torch.float32)
        self.bias = unfilled(size, dtype=torch.float32)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Tensor, stream: Tensor) -> Tensor:
        stream.add_(x)
        return layer_norm(stream, self.weight, self.bias, self.eps)


class NoNorm(nn.Module):
    """Stands where a placement has no norm."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, stream: Tensor) -> Tensor:
        return stream.add_(x)


AnyNorm = RMSNorm | LayerNorm | NoNorm


def make_norm(spec: Norm, size: int) -> RMSNorm | LayerNorm:
    return RMSNorm(size, spec.eps) if spec.kind == "rms" else LayerNorm(size, spec.eps)
