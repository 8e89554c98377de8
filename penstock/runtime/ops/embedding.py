"""Rows of a matrix looked up by number."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.op import operation


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(9)
    ids = torch.tensor([0, 9, 3, 3], device=device)
    for dtype in (torch.float32, torch.float16):
        for scale in (1.0, 22.5):
            yield ids, torch.randn((10, 32), generator=generator, device=device).to(dtype), scale


@operation(_examples)
def embed(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    rows = functional.embedding(ids, weight)
    return rows if scale == 1.0 else rows * scale
