"""Arguments of the operations of `ops.rope`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.spec import (
    Rope,
)
from penstock.runtime.ops.rope import angle_table, rotate
from tests.ops.examples import examples_of


@examples_of(rotate)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(3)
    for dtype in (torch.float32, torch.float16):
        for tokens, heads, head_dim, dim in ((1, 12, 64, 64), (9, 3, 128, 128), (4, 2, 96, 32)):
            table = angle_table(Rope(dim), 64, device)
            positions = torch.arange(tokens, device=device) * 5
            x = torch.randn((tokens, heads, head_dim), generator=generator, device=device).to(dtype)
            yield x, table.at(positions)
