"""Arguments of the operations of `ops.linear`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.linear import gated_linear, linear
from tests.ops.examples import examples_of


@examples_of(linear)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(8)
    for dtype in (torch.float32, torch.float16):
        for tokens, size, out_size in ((1, 64, 96), (8, 128, 40), (33, 96, 128)):
            x = torch.randn((tokens, size), generator=generator, device=device).to(dtype)
            weight = (torch.randn((out_size, size), generator=generator, device=device) * size**-0.5).to(dtype)
            yield x, weight, None
            yield x, weight, weight[:, 0].contiguous()


@examples_of(gated_linear)
def _gated_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for number, (x, weight, bias) in enumerate(_examples(device)):
        yield x, weight, bias, ("silu", "gelu", "gelu_tanh", "swiglu_clamped")[number % 4]
    generator = torch.Generator(device).manual_seed(9)
    x = torch.randn((70, 24), generator=generator, device=device).half()  # as many rows and outputs as fill a chip
    weight = (torch.randn((2 * 12300, 24), generator=generator, device=device) * 0.2).half()
    yield x, weight, weight[:, 0].contiguous(), "silu"
