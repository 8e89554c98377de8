"""Arguments of the operations of `ops.embedding`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.embedding import embed
from tests.ops.examples import examples_of


@examples_of(embed)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(9)
    ids = torch.tensor([0, 9, 3, 3], device=device)
    for dtype in (torch.float32, torch.float16):
        for scale in (1.0, 22.5):
            yield ids, torch.randn((10, 32), generator=generator, device=device).to(dtype), scale
