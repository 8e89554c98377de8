"""Matrix products with weights [out, in]."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.op import operation


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(8)
    for dtype in (torch.float32, torch.float16):
        for tokens, size, out_size in ((1, 64, 96), (8, 128, 40), (33, 96, 128)):
            x = torch.randn((tokens, size), generator=generator, device=device).to(dtype)
            weight = (torch.randn((out_size, size), generator=generator, device=device) * size**-0.5).to(dtype)
            yield x, weight, None
            yield x, weight, weight[:, 0].contiguous()


@operation(_examples)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)


def _gated_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for number, (x, weight, bias) in enumerate(_examples(device)):
        yield x, weight, bias, ("silu", "gelu", "gelu_tanh", "swiglu_clamped")[number % 4]
    generator = torch.Generator(device).manual_seed(9)
    x = torch.randn((70, 24), generator=generator, device=device).half()  # as many rows and outputs as fill a chip
    weight = (torch.randn((2 * 12300, 24), generator=generator, device=device) * 0.2).half()
    yield x, weight, weight[:, 0].contiguous(), "silu"


@operation(_gated_examples)
def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """The gate of a pair of products: the first half of the matrix's rows makes gates, the second what they let through."""
    return gate(linear(x, weight, bias), activation)
