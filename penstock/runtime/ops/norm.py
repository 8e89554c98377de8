"""Norms over the last axis. Sums are taken in float32 whatever the numbers are stored as; weights are float32."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.op import operation


def _rms_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(1)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 64), (7, 576), (3, 5, 128), (33, 4096)):
            x = torch.randn(shape, generator=generator, device=device).to(dtype) * 3
            yield x, torch.rand(shape[-1], generator=generator, device=device) + 0.5, 1e-5


@operation(_rms_examples)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def _add_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, eps in _rms_examples(device):
        yield x, x.roll(1, -1).contiguous(), weight, eps


@operation(_add_examples)
def add_rms_norm(x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds `x` to the residual stream, which is written, and returns the stream's norm."""
    stream.add_(x)
    return rms_norm.definition(stream, weight, eps)


def _layer_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, eps in _rms_examples(device):
        yield x, weight, weight.flip(0), eps


@operation(_layer_examples)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
