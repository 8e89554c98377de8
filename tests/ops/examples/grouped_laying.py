"""Arguments of the operations of `ops.grouped.laying`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.grouped.laying import lay_matrices
from tests.ops.examples import examples_of


@examples_of(lay_matrices)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(35)
    moves = [
        [3, 40, 1, 5, 40, 0, 16, 40],
        [203, 5, 1, 32, 5, 640, 32, 16],
        [0, 1, 32, 32, 5, 1152, 32, 16],
        [0, 0, 0, 0, 0, 1664, 16, 8],
    ]
    told = torch.tensor(moves, device=device), torch.tensor([1.0, 0.5, -2.0, 1.0], device=device)
    for kind, target in ((torch.float16, torch.float32), (torch.float32, torch.float16)):
        source = torch.randn(1000, generator=generator, device=device).to(kind)
        yield torch.full((2000,), 7.0, dtype=target, device=device), source, *told
