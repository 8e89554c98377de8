"""Activations of the feed-forward sublayers, alone and as the gate of a pair."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.op import operation

CLAMP = 7.0
SHARPNESS = 1.702

_PLAIN: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    return _PLAIN[activation](x)


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(2)
    activations: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "swiglu_clamped", "relu2")
    for dtype in (torch.float32, torch.float16):
        for activation in activations:
            yield torch.randn((5, 2 * 96), generator=generator, device=device).to(dtype) * 4, activation


@operation(_examples)
def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(first half) * second half, over the last axis."""
    first, second = gate_up.chunk(2, dim=-1)
    if activation == "swiglu_clamped":
        first = first.clamp(max=CLAMP)
        return first * torch.sigmoid(first * SHARPNESS) * (second.clamp(-CLAMP, CLAMP) + 1)
    return _PLAIN[activation](first) * second
