"""A decode step's reading and writing of rows, a launch each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.rows import Decodes, gather_checks, gather_decodes, keep_drawn
from penstock.runtime.ops.triton.host.launch import entry


@entry
@triton.jit(
    do_not_specialize=["token_width", "table_width"],
    do_not_specialize_on_alignment=["rows", "positions", "drafts", "token_ids", "slots", "contexts"],
)
def _gather(
    tokens, tables, rows, positions, drafts, token_ids, slots, contexts, chosen, token_width, table_width,
    BLOCK_SIZE: tl.constexpr, PAD: tl.constexpr, DRAFTS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    row = tl.load(rows + number)
    position = tl.load(positions + number)
    token = tl.load(tokens + row * token_width + position).to(tl.int64)
    if DRAFTS:
        draft = tl.load(drafts + number)
        token = tl.where(draft < 0, token, draft)
    tl.store(token_ids + number, token)
    block = tl.load(tables + row * table_width + position // BLOCK_SIZE).to(tl.int64)
    tl.store(slots + number, block * BLOCK_SIZE + position % BLOCK_SIZE)
    tl.store(contexts + number, (position + 1).to(tl.int32))
    for begin in range(0, table_width, PAD):
        columns = begin + tl.arange(0, PAD)
        table = tl.load(tables + row * table_width + columns, mask=columns < table_width, other=0)
        tl.store(chosen + number.to(tl.int64) * table_width + columns, table, mask=columns < table_width)


@entry
@triton.jit(do_not_specialize=["token_width"], do_not_specialize_on_alignment=["rows", "positions", "drawn"])
def _keep(tokens, rows, positions, drawn, token_width):
    number = tl.program_id(0)
    place = tl.load(rows + number) * token_width + tl.load(positions + number) + 1
    tl.store(tokens + place, tl.maximum(tl.load(drawn + number), 0).to(tl.int32))


@gather_decodes.kernel("cuda")
def gather_in_one(tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, block_size: int) -> Decodes:
    return _gathered(tokens, tables, rows, positions, None, block_size)


@gather_checks.kernel("cuda")
def gather_checks_in_one(
    tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, drafts: Tensor, block_size: int
) -> Decodes:
    return _gathered(tokens, tables, rows, positions, drafts, block_size)


def _gathered(
    tokens: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, drafts: Tensor | None, block_size: int
) -> Decodes:
    count, width = rows.shape[0], tables.shape[1]
    token_ids, slots = torch.empty((2, count), dtype=torch.int64, device=rows.device)
    contexts = torch.empty(count, dtype=torch.int32, device=rows.device)
    chosen = torch.empty((count, width), dtype=torch.int32, device=rows.device)
    pad = min(triton.next_power_of_2(width), 1024)
    _gather[(count,)](
        tokens, tables, rows, positions, rows if drafts is None else drafts, token_ids, slots, contexts, chosen,
        tokens.stride(0), tables.stride(0), BLOCK_SIZE=block_size, PAD=pad, DRAFTS=drafts is not None, num_warps=4,
    )  # fmt: skip
    return Decodes(token_ids, slots, contexts, chosen)


@keep_drawn.kernel("cuda")
def keep_in_one(tokens: Tensor, rows: Tensor, positions: Tensor, drawn: Tensor) -> None:
    _keep[(rows.shape[0],)](tokens, rows, positions, drawn, tokens.stride(0), num_warps=1)
