"""What a decode step reads from its rows and writes to them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.runtime.ops.op import operation


class Decodes(NamedTuple):
    """One position of each row, ready for the model."""

    token_ids: Tensor
    slots: Tensor
    context_lengths: Tensor
    block_tables: Tensor


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(16)
    tokens = torch.randint(0, 1000, (6, 33), generator=generator, device=device).int()
    tables = torch.randint(0, 50, (6, 4), generator=generator, device=device).int()
    for rows, positions in (([3], [0]), ([5, 0, 2, 4], [31, 8, 7, 16])):
        yield tokens, tables, torch.tensor(rows, device=device), torch.tensor(positions, device=device), 8


@operation(_examples)
def gather_decodes(tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, block_size: int) -> Decodes:
    """`tokens` are [rows, positions] and `tables` [rows, blocks] of all rows; `rows` and `positions` say what is computed."""
    chosen = tables.index_select(0, rows)
    blocks = chosen.gather(1, (positions // block_size)[:, None])[:, 0].long()
    slots = blocks * block_size + positions % block_size
    return Decodes(tokens[rows, positions].long(), slots, (positions + 1).int(), chosen)


def _check_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for tokens, tables, rows, positions, block_size in _examples(device):
        drafts = torch.tensor([-1, 700, 0, 3][: len(rows)], device=device)
        yield tokens, tables, rows, positions, drafts, block_size


@operation(_check_examples)
def gather_checks(
    tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, drafts: Tensor, block_size: int
) -> Decodes:
    """As `gather_decodes`, with drafts in place of the rows' own tokens where there are any; -1 is none."""
    decodes = gather_decodes.definition(tokens, tables, rows, positions, block_size)
    return decodes._replace(token_ids=torch.where(drafts < 0, decodes.token_ids, drafts))


def _keep_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for tokens, _, rows, positions, _ in _examples(device):
        yield tokens, rows, positions, torch.arange(len(rows), device=device) * 7 - 1


@operation(_keep_examples)
def keep_drawn(tokens: Tensor, rows: Tensor, positions: Tensor, drawn: Tensor) -> None:
    """Writes each drawn token after its row's position; one that was not drawn is written as token 0."""
    tokens[rows, positions + 1] = drawn.clamp(min=0).int()
