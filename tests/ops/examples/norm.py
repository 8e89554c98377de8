"""Arguments of the operations of `ops.norm`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.norm import add_rms_norm, layer_norm, rms_norm
from tests.ops.examples import examples_of


@examples_of(rms_norm)
def _rms_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(1)
    for dtype in (torch.float32, torch.float16):
        for shape in ((1, 64), (7, 576), (3, 5, 128), (33, 4096)):
            x = torch.randn(shape, generator=generator, device=device).to(dtype) * 3
            yield x, torch.rand(shape[-1], generator=generator, device=device) + 0.5, 1e-5


@examples_of(add_rms_norm)
def _add_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, eps in _rms_examples(device):
        yield x, x.roll(1, -1).contiguous(), weight, eps


@examples_of(layer_norm)
def _layer_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, weight, eps in _rms_examples(device):
        yield x, weight, weight.flip(0), eps
