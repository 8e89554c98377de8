"""Arguments of the operations of `ops.fp8`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.quantized.fp8 import multiply_fp8, round_gated, round_normed, round_rows
from tests.ops.examples import examples_of


@examples_of(round_rows)
def _round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(17)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 48), (5, 256), (3, 1000)):
            x = torch.randn(shape, generator=generator, device=device) * 3
            x[-1] *= len(x) - 1  # a row of zeros
            yield (x.to(dtype),)


@examples_of(round_gated)
def _gated_round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    """Gates of whole numbers: no rounding of theirs decides between two 8-bit floats."""
    generator = torch.Generator(device).manual_seed(18)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 96), (5, 512)):
            pairs = torch.full(shape, 7.0, device=device)
            pairs[:, shape[1] // 2 :] = torch.randint(
                -8, 8, (shape[0], shape[1] // 2), generator=generator, device=device
            )
            yield pairs.to(dtype), "swiglu_clamped"


@examples_of(round_normed)
def _normed_round_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(20)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 64), (5, 576)):
            x, stream = torch.randn((2, *shape), generator=generator, device=device).to(dtype) * 3
            weight = torch.rand(shape[-1], generator=generator, device=device) + 0.5
            yield x, stream, weight, 1e-5
            yield x, None, weight, 1e-5


def _linear_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(19)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for tokens, size, num_out in ((1, 64, 96), (1, 1000, 20), (6, 96, 40), (20, 128, 48)):
            x = torch.randn((tokens, size), generator=generator, device=device).to(dtype)
            weight = torch.randn((num_out, size), generator=generator, device=device) * size**-0.5
            yield x, round_rows(weight), None
            yield x, round_rows(weight), weight[:, 0].contiguous().to(dtype)


@examples_of(multiply_fp8)
def _multiply_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, bias in _linear_examples(device):
        yield *round_rows(x), weight, bias, x.dtype
