"""Arguments of the operations of `ops.int8`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.quantized.int8 import (
    multiply_int8,
    round_int8,
)
from tests.ops.examples import examples_of


@examples_of(round_int8)
def _round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(22)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 64), (5, 256), (3, 1000)):
            x = torch.randn(shape, generator=generator, device=device) * 3
            x[-1] *= len(x) - 1  # a row of zeros
            yield (x.to(dtype),)


@examples_of(multiply_int8)
def _multiply_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(23)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for tokens, size, num_out in ((1, 64, 96), (6, 96, 40), (20, 128, 48), (140, 64, 32)):
            x = torch.randn((tokens, size), generator=generator, device=device)
            weight = torch.randn((num_out, size), generator=generator, device=device) * size**-0.5
            yield *round_int8(x), round_int8(weight), None, dtype
            yield *round_int8(x), round_int8(weight), weight[:, 0].contiguous().to(dtype), dtype
