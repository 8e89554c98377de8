"""What a decode step reads from its rows and writes to them."""

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.ops.op import operation


class Decodes(NamedTuple):
    """One position of each row, ready for the model."""

    token_ids: Tensor
    slots: Tensor
    context_lengths: Tensor
    block_tables: Tensor


@operation
def gather_decodes(tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, block_size: int) -> Decodes:
    """`tokens` are [rows, positions] and `tables` [rows, blocks] of all rows; `rows` and `positions` say what is computed."""
    chosen = tables.index_select(0, rows)
    blocks = chosen.gather(1, (positions // block_size)[:, None])[:, 0].long()
    slots = blocks * block_size + positions % block_size
    return Decodes(tokens[rows, positions].long(), slots, (positions + 1).int(), chosen)


@operation
def gather_checks(
    tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, drafts: Tensor, block_size: int
) -> Decodes:
    """As `gather_decodes`, with drafts in place of the rows' own tokens where there are any; -1 is none."""
    decodes = gather_decodes.definition(tokens, tables, rows, positions, block_size)
    return decodes._replace(token_ids=torch.where(drafts < 0, decodes.token_ids, drafts))


@operation
def keep_drawn(tokens: Tensor, rows: Tensor, positions: Tensor, drawn: Tensor) -> None:
    """Writes each drawn token after its row's position; one that was not drawn is written as token 0."""
    tokens[rows, positions + 1] = drawn.clamp(min=0).int()
