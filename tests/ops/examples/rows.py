"""Arguments of the operations of `ops.rows`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.rows import gather_checks, gather_decodes, keep_drawn
from tests.ops.examples import examples_of


@examples_of(gather_decodes)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(16)
    tokens = torch.randint(0, 1000, (6, 33), generator=generator, device=device).int()
    tables = torch.randint(0, 50, (6, 4), generator=generator, device=device).int()
    for rows, positions in (([3], [0]), ([5, 0, 2, 4], [31, 8, 7, 16])):
        yield tokens, tables, torch.tensor(rows, device=device), torch.tensor(positions, device=device), 8


@examples_of(gather_checks)
def _check_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for tokens, tables, rows, positions, block_size in _examples(device):
        drafts = torch.tensor([-1, 700, 0, 3][: len(rows)], device=device)
        yield tokens, tables, rows, positions, drafts, block_size


@examples_of(keep_drawn)
def _keep_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for tokens, _, rows, positions, _ in _examples(device):
        yield tokens, rows, positions, torch.arange(len(rows), device=device) * 7 - 1
