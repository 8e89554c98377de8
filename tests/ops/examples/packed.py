"""Arguments of the operations of `ops.packed`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.quantized.packed import (
    GROUP,
    Grouped,
    arrange,
    embed_packed,
    gated_linear_packed,
    linear_packed,
    scores_packed,
)
from tests.ops.examples import examples_of


@examples_of(linear_packed)
def _word_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(21)
    shapes = ((1, 64, 48), (1, 1184, 20), (5, 96, 40), (16, 256, 72), (40, 160, 64), (140, 128, 32), (120, 96, 24))
    for number, (tokens, size, num_out) in enumerate(shapes):
        for bits, has_minimum, share in ((4, True, 1), (8, False, 1), (8, True, 2)):
            share = share if size % 64 == 0 else 1
            bytes_of_group = GROUP * bits // 8
            shape = (num_out, size // GROUP, bytes_of_group)
            values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator, device=device)
            scales = torch.rand((num_out, size // GROUP // share), generator=generator, device=device) * 2 ** (1 - bits)
            minimums = torch.randn(scales.shape, generator=generator, device=device) * 0.3
            scales, minimums = (each.repeat_interleave(share, 1).half() * size**-0.5 for each in (scales, minimums))
            matrix = Grouped(
                values if bits == 4 else values.view(torch.int8), scales, minimums if has_minimum else None
            )
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                x = torch.randn((tokens, size), generator=generator, device=device).to(dtype)
                bias = torch.randn(num_out, generator=generator, device=device).to(dtype)
                yield x, arrange(matrix), bias if number % 2 else None


@examples_of(gated_linear_packed)
def _gated_word_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for number, (x, weight, bias) in enumerate(_word_examples(device)):
        yield x, weight, bias, ("silu", "gelu", "gelu_tanh", "swiglu_clamped")[number % 4]


@examples_of(scores_packed)
def _score_word_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, _ in _word_examples(device):
        if x.dtype == torch.float32:  # the result is, and is held to it
            yield x, weight


@examples_of(embed_packed)
def _embed_word_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, bias in _word_examples(device):
        ids = torch.tensor([0, weight.num_rows - 1, 3, 3], device=device)
        yield ids, weight, 1.0 if bias is None else 22.5, x.dtype
