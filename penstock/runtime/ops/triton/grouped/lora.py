"""What adapters add to a product, in two launches for all tokens and all joined modules.

    shrink   a tile of tokens of one adapter times A, the inputs shared out among programs: sums that are not added up yet
    expand   those sums added up, times some rows of B, added to the product

Tiles of no adapter end at once.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.lora import LORA_TILE, add_lora
from penstock.runtime.ops.moe import Groups
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry

LEAST_DOT = 16
MOST_RANK = 128
BLOCK = 128
MOST_SPLITS = 8
"""Programs that share a tile's inputs: with few tokens there are few tiles, and one program would take long."""


@entry
@triton.jit
def _shrink(
    x, order, tiles, a, out, num_tokens,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """WIDTH are the ranks of all parts together."""
    await_others(CHAINS)
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    if slot <= 0:
        return
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, TILE)
    tokens = tl.load(order + tl.minimum(sorted_at, end - 1)).to(tl.int64)
    ranks = tl.arange(0, PAD)
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([TILE, PAD], tl.float32)
    split = tl.program_id(1)
    for begin in range(split * BLOCK, COLUMNS, SPLITS * BLOCK):
        inside = begin + columns < COLUMNS
        numbers = tl.load(x + tokens[:, None] * COLUMNS + begin + columns[None, :], mask=inside[None, :], other=0.0)
        at = a + (slot * WIDTH + ranks[None, :]) * COLUMNS + begin + columns[:, None]
        weights = tl.load(at, mask=inside[:, None] & (ranks < WIDTH)[None, :], other=0.0)
        total = tl.dot(numbers, weights, total, input_precision="ieee")
    target = out + (split * num_tokens + sorted_at.to(tl.int64))[:, None] * WIDTH + ranks[None, :]
    tl.store(target, total, mask=(sorted_at < end)[:, None] & (ranks < WIDTH)[None, :])


@entry
@triton.jit
def _expand(
    shrunk, order, tiles, b, y, num_tokens,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, PAD: tl.constexpr, SECOND: tl.constexpr,
    THIRD: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs, which lie in one part. SECOND and THIRD are where parts begin."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    if slot <= 0:
        await_others(CHAINS)
        return
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, TILE)
    tokens = tl.load(order + tl.minimum(sorted_at, end - 1)).to(tl.int64)
    first = tl.program_id(1) * ROWS
    rows = first + tl.arange(0, ROWS)
    ranks = tl.arange(0, PAD)
    there = ranks < RANK
    weights = tl.load(b + (slot * OUTPUTS + rows[None, :]) * RANK + ranks[:, None], mask=there[:, None], other=0.0)
    await_others(CHAINS)
    part = (first >= SECOND).to(tl.int32) + (first >= THIRD).to(tl.int32)
    mask = (sorted_at < end)[:, None] & there[None, :]
    sums = tl.zeros([TILE, PAD], tl.float32)
    for split in tl.static_range(SPLITS):
        at = shrunk + (split * num_tokens + sorted_at.to(tl.int64))[:, None] * WIDTH + part * RANK + ranks[None, :]
        sums += tl.load(at, mask=mask, other=0.0)
    made = tl.dot(sums.to(weights.dtype), weights, input_precision="ieee")
    target = y + tokens[:, None] * OUTPUTS + rows[None, :]
    inside = (sorted_at < end)[:, None] & (rows < OUTPUTS)[None, :]
    before = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, (before + made).to(y.dtype.element_ty), mask=inside)


def _fits(
    y: Tensor, x: Tensor, groups: Groups | None, slots: Tensor, a: Tensor, b: Tensor, sizes: Sequence[int]
) -> bool:
    are_laid_out = all(tensor.is_contiguous() for tensor in (y, x, a, b))
    is_even = all(size % LEAST_DOT == 0 for size in sizes) and len(sizes) <= 3
    is_one_type = x.dtype == y.dtype == a.dtype == b.dtype
    return groups is not None and are_laid_out and is_even and is_one_type and b.shape[2] <= MOST_RANK and len(x) > 0


@add_lora.kernel("cuda", fits=_fits)
def add_thin_products(
    y: Tensor, x: Tensor, groups: Groups | None, slots: Tensor, a: Tensor, b: Tensor, sizes: Sequence[int]
) -> Tensor:
    if groups is None:
        raise ValueError("tokens have to be sorted by adapter")
    (num_tokens, columns), width, (_, outputs, rank) = x.shape, a.shape[1], b.shape
    num_tiles = len(groups.tiles)
    splits = max(1, min(MOST_SPLITS, columns // (2 * BLOCK)))
    shrunk = torch.empty((splits, num_tokens, width), device=x.device)
    _shrink[num_tiles, splits](
        x, groups.order, groups.tiles, a, shrunk, num_tokens,
        columns, width, max(LEAST_DOT, triton.next_power_of_2(width)), splits, LORA_TILE, BLOCK, **chained(),
    )  # fmt: skip
    rows = next(count for count in (128, 64, 32, 16) if all(size % count == 0 for size in sizes))
    second = sizes[0] if len(sizes) > 1 else outputs
    third = sizes[0] + sizes[1] if len(sizes) > 2 else outputs
    _expand[num_tiles, outputs // rows](
        shrunk, groups.order, groups.tiles, b, y, num_tokens,
        outputs, width, rank, max(LEAST_DOT, triton.next_power_of_2(rank)), second, third, splits, LORA_TILE, rows,
        **chained(),
    )  # fmt: skip
    return y
