"""Arguments of the operations of `ops.activation`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from tests.ops.examples import examples_of


@examples_of(gate)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(2)
    activations: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "swiglu_clamped", "relu2")
    for dtype in (torch.float32, torch.float16):
        for activation in activations:
            yield torch.randn((5, 2 * 96), generator=generator, device=device).to(dtype) * 4, activation
