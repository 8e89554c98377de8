"""Activations of the feed-forward sublayers, alone and as the gate of a pair."""

from collections.abc import Callable
from functools import partial

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


@operation
def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(first half) * second half, over the last axis."""
    first, second = gate_up.chunk(2, dim=-1)
    if activation == "swiglu_clamped":
        first = first.clamp(max=CLAMP)
        return first * torch.sigmoid(first * SHARPNESS) * (second.clamp(-CLAMP, CLAMP) + 1)
    return _PLAIN[activation](first) * second
