"""What adapters add to a product, in two launches for all tokens and all joined modules.

    shrink   a tile of tokens of one adapter times A, the inputs shared out among programs: sums that are not added up yet
    expand   those sums added up, times some columns of B, added to the product; with a gate, gated right away

Tiles of no adapter end at once. Tiles, ranks and places are older than the launch before, so they are read while it ends.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.lora import RANK_STEP, LoraBank, add_lora, add_lora_gated, is_even, lora_tile
from penstock.runtime.ops.moe import Groups
from penstock.runtime.ops.triton.activation import KINDS, gated
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry


class LoraCut(NamedTuple):
    """How the work is shared out among programs."""

    block: int = 128
    """Inputs a program reads at a time."""
    splits: int = 8
    """Most programs that share a tile's inputs: with few tokens there are few tiles, and one program would take long."""
    shrink_warps: int = 4
    rows: int = 128
    """Outputs of a program."""
    expand_warps: int = 4
    gated_rows: int = 64
    gated_warps: int = 4


CUT = LoraCut()


@entry
@triton.jit(do_not_specialize=["num_tokens"])
def _shrink(
    x, order, tiles, numbers, places, out, num_tokens, room, stride,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr, RANKS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """WIDTH is the room for a part's ranks, RANKS how many are computed together."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    rank = tl.load(places + tl.maximum(slot, 0) * stride)
    if (slot <= 0) | (rank == 0):
        await_others(CHAINS)
        return
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, TILE)
    tokens = tl.load(order + tl.minimum(sorted_at, end - 1)).to(tl.int64)
    ranks = tl.arange(0, RANKS)
    columns = tl.arange(0, BLOCK)
    split = tl.program_id(1)
    part = tl.program_id(2)
    a = numbers + (slot - 1) * room + tl.multiple_of(tl.load(places + slot * stride + 1), 16) + part * rank * COLUMNS
    a = tl.multiple_of(a, 16)
    await_others(CHAINS)
    target = out + (split * num_tokens + sorted_at.to(tl.int64))[:, None] * (PARTS * WIDTH) + part * WIDTH
    for above in range(0, rank, RANKS):
        total = tl.zeros([TILE, RANKS], tl.float32)
        there = (above + ranks < rank)[None, :]
        for begin in range(split * BLOCK, COLUMNS, SPLITS * BLOCK):
            inside = begin + columns < COLUMNS
            read = tl.load(x + tokens[:, None] * COLUMNS + begin + columns[None, :], mask=inside[None, :], other=0.0)
            at = a + (above + ranks[None, :]) * COLUMNS + begin + columns[:, None]
            weights = tl.load(at, mask=inside[:, None] & there, other=0.0)
            total = tl.dot(read.to(weights.dtype), weights, total, input_precision="ieee")
        tl.store(target + above + ranks[None, :], total, mask=(sorted_at < end)[:, None] & there)


@triton.jit
def _sum(shrunk, sorted_at, end, num_tokens, ranks, rank, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """A tile's sums, over all programs that had a share of the inputs; WIDTH are the numbers of a token."""
    mask = (sorted_at < end)[:, None] & (ranks < rank)[None, :]
    at = shrunk + sorted_at.to(tl.int64)[:, None] * WIDTH + ranks[None, :]
    total = tl.load(at, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(at + split * num_tokens.to(tl.int64) * WIDTH, mask=mask, other=0.0)
    return total


@triton.jit
def _scaled(before, factors, bias, slot, rows, inside, factor_stride, BIAS: tl.constexpr):
    """The plain product times an adapter's factors; a bias is none of it."""
    scales = tl.load(factors + slot * factor_stride + rows, mask=inside, other=0.0)[None, :]
    if BIAS:
        added = tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)[None, :]
        return (before - added) * scales + added
    else:
        return before * scales


@entry
@triton.jit(do_not_specialize=["num_tokens"])
def _expand(
    shrunk, order, tiles, numbers, places, factors, bias, y, num_tokens, room, stride, factor_stride,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    SPLITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, BIAS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs, which lie in one part. SECOND and THIRD are where parts begin."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    told = places + tl.maximum(slot, 0) * stride
    rank = tl.load(told)
    if (slot <= 0) | (rank == 0):
        await_others(CHAINS)
        return
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, TILE)
    tokens = tl.load(order + tl.minimum(sorted_at, end - 1)).to(tl.int64)
    first = tl.program_id(1) * ROWS
    rows = first + tl.arange(0, ROWS)
    inside = rows < OUTPUTS
    ranks = tl.arange(0, RANKS)
    b = numbers + (slot - 1) * room + tl.multiple_of(tl.load(told + 2), 16)
    weights = tl.load(
        b + ranks[:, None] * OUTPUTS + rows[None, :], mask=(ranks < rank)[:, None] & inside[None, :], other=0.0
    )
    await_others(CHAINS)
    part = (first >= SECOND).to(tl.int32) + (first >= THIRD).to(tl.int32)
    ours = shrunk + part * WIDTH
    sums = _sum(ours, sorted_at, end, num_tokens, ranks, rank, PARTS * WIDTH, SPLITS)
    made = tl.dot(sums.to(weights.dtype), weights, input_precision="ieee")
    for above in range(RANKS, rank, RANKS):
        sums = _sum(ours, sorted_at, end, num_tokens, above + ranks, rank, PARTS * WIDTH, SPLITS)
        at = b + (above + ranks[:, None]) * OUTPUTS + rows[None, :]
        weights = tl.load(at, mask=(above + ranks < rank)[:, None] & inside[None, :], other=0.0)
        made = tl.dot(sums.to(weights.dtype), weights, made, input_precision="ieee")
    target = y + tokens[:, None] * OUTPUTS + rows[None, :]
    mask = (sorted_at < end)[:, None] & inside[None, :]
    before = tl.load(target, mask=mask, other=0.0).to(tl.float32)
    if tl.load(told + 3) != 0:
        before = _scaled(before, factors, bias, slot, rows, inside, factor_stride, BIAS)
    tl.store(target, (before + made).to(y.dtype.element_ty), mask=mask)


@entry
@triton.jit(do_not_specialize=["num_tokens"])
def _expand_gated(
    shrunk, order, tiles, numbers, places, factors, bias, y, out, num_tokens, room, stride, factor_stride,
    HALF: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    RANKS: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs of both halves. Tokens without an adapter are gated here too."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    if slot < 0:
        await_others(CHAINS)
        return
    told = places + slot * stride
    rank = tl.load(told)
    end = tl.load(tile + 2)
    sorted_at = tl.load(tile + 1) + tl.arange(0, TILE)
    tokens = tl.load(order + tl.minimum(sorted_at, end - 1)).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = rows < HALF
    ranks = tl.arange(0, RANKS)
    b = numbers + (slot - 1) * room + tl.multiple_of(tl.load(told + 2), 16)
    at = b + ranks[:, None] * (2 * HALF) + rows[None, :]
    there = (ranks < rank)[:, None] & inside[None, :]
    gate_weights = tl.load(at, mask=there, other=0.0)
    up_weights = tl.load(at + HALF, mask=there, other=0.0)
    await_others(CHAINS)
    source = y + tokens[:, None] * (2 * HALF) + rows[None, :]
    mask = (sorted_at < end)[:, None] & inside[None, :]
    gates = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    ups = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    if tl.load(told + 3) != 0:
        gates = _scaled(gates, factors, bias, slot, rows, inside, factor_stride, BIAS)
        ups = _scaled(ups, factors + HALF, bias + HALF, slot, rows, inside, factor_stride, BIAS)
    for above in range(0, rank, RANKS):
        sums = _sum(shrunk, sorted_at, end, num_tokens, above + ranks, rank, PARTS * WIDTH, SPLITS)
        gates = tl.dot(sums.to(gate_weights.dtype), gate_weights, gates, input_precision="ieee")
        if PARTS > 1:
            sums = _sum(shrunk + WIDTH, sorted_at, end, num_tokens, above + ranks, rank, PARTS * WIDTH, SPLITS)
        ups = tl.dot(sums.to(up_weights.dtype), up_weights, ups, input_precision="ieee")
        at += RANKS * 2 * HALF
        there = (above + RANKS + ranks < rank)[:, None] & inside[None, :]
        gate_weights = tl.load(at, mask=there, other=0.0)
        up_weights = tl.load(at + HALF, mask=there, other=0.0)
    value = gated(gates, ups, out.dtype.element_ty, KIND, CLAMP, SHARPNESS)
    tl.store(out + tokens[:, None] * HALF + rows[None, :], value.to(out.dtype.element_ty), mask=mask)


def num_splits(num_tokens: int, columns: int) -> int:
    """Few for many tokens, whose tiles keep the chip busy; a power of two, so that few kernels are compiled."""
    most = min(CUT.splits, max(1, columns // (2 * CUT.block)), max(1, 1024 // num_tokens))
    return 1 << (most.bit_length() - 1)


def shrink(x: Tensor, groups: Groups, bank: LoraBank, num_parts: int) -> Tensor:
    """[splits, tokens in their order, parts x ranks]"""
    (num_tokens, columns), splits, width = x.shape, num_splits(*x.shape), bank.most_rank
    out = torch.empty((splits, num_tokens, num_parts * width), device=x.device)
    _shrink[len(groups.tiles), splits, num_parts](
        x, groups.order, groups.tiles, bank.numbers, bank.places, out, num_tokens, bank.numbers.stride(0),
        bank.places.stride(0), columns, width, num_parts, splits, lora_tile(num_tokens), CUT.block, RANK_STEP, **chained(),
        num_warps=CUT.shrink_warps,
    )  # fmt: skip
    return out


def _fits(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    groups: Groups | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
) -> bool:
    return groups is not None and y.is_contiguous() and x.is_contiguous() and is_even(sizes) and len(x) > 0


@add_lora.kernel("cuda", fits=_fits)
def add_thin_products(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    groups: Groups | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
) -> Tensor:
    if groups is None:
        raise ValueError("tokens have to be sorted by adapter")
    return expand(y, shrink(x, groups, bank, len(sizes)), bias, groups, bank, sizes)


def expand(
    y: Tensor, shrunk: Tensor, bias: Tensor | None, groups: Groups, bank: LoraBank, sizes: Sequence[int]
) -> Tensor:
    num_tokens, outputs = y.shape
    widths = [CUT.rows >> power for power in range(4)]
    rows = next((count for count in widths if all(size % count == 0 for size in sizes)), RANK_STEP)
    second = sizes[0] if len(sizes) > 1 else outputs
    third = sizes[0] + sizes[1] if len(sizes) > 2 else outputs
    _expand[len(groups.tiles), triton.cdiv(outputs, rows)](
        shrunk, groups.order, groups.tiles, bank.numbers, bank.places, bank.factors, y if bias is None else bias, y,
        num_tokens, bank.numbers.stride(0), bank.places.stride(0), bank.factors.stride(0),
        outputs, bank.most_rank, len(sizes), second, third, len(shrunk), lora_tile(num_tokens), rows, RANK_STEP,
        bias is not None, **chained(), num_warps=CUT.expand_warps,
    )  # fmt: skip
    return y


def _gated_fits(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    groups: Groups | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> bool:
    return groups is not None and y.is_contiguous() and x.is_contiguous() and len(x) > 0


@add_lora_gated.kernel("cuda", fits=_gated_fits)
def gate_thin_products(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    groups: Groups | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> Tensor:
    if groups is None:
        raise ValueError("tokens have to be sorted by adapter")
    return expand_gated(y, shrink(x, groups, bank, len(sizes)), bias, groups, bank, sizes, activation)


def expand_gated(
    y: Tensor,
    shrunk: Tensor,
    bias: Tensor | None,
    groups: Groups,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> Tensor:
    num_tokens, half, rows = y.shape[0], y.shape[1] // 2, CUT.gated_rows
    out = torch.empty((num_tokens, half), dtype=y.dtype, device=y.device)
    _expand_gated[len(groups.tiles), triton.cdiv(half, rows)](
        shrunk, groups.order, groups.tiles, bank.numbers, bank.places, bank.factors, y if bias is None else bias, y, out,
        num_tokens, bank.numbers.stride(0), bank.places.stride(0), bank.factors.stride(0),
        half, bank.most_rank, len(sizes), len(shrunk), lora_tile(num_tokens), rows, RANK_STEP, bias is not None,
        KINDS[activation], CLAMP, SHARPNESS, **chained(), num_warps=CUT.gated_warps,
    )  # fmt: skip
    return out
