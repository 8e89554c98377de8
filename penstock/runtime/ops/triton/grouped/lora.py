"""What adapters add to a product, in two launches for all tokens and all joined modules.

    tile     once a step: tokens sorted by adapter and cut into tiles, those of adapters first
    shrink   a tile times A of all parts, the inputs shared out among programs: sums that are not added up yet
    expand   those sums added up, times some rows of B, added to the product; with a gate, gated right away

Programs take pieces of work in turn, as many as there are: how many adapters a step has is not known when it is recorded.
Shrinking reads nothing that the product before it writes, so it waits only before it writes, and lets expanding begin at once:
that reads B meanwhile, and waits before it touches anything else. Loads are not moved from one turn of a loop to another
(`num_stages=1`): what a launch waits for must not be read before.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.lora import (
    RANK_STEP,
    LoraBank,
    Product,
    TokenTiles,
    add_lora,
    add_lora_gated,
    is_even,
    lora_tile,
    tile_tokens,
)
from penstock.runtime.ops.triton.activation import KINDS, gated
from penstock.runtime.ops.triton.host.chain import await_others, chained, release_next
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.sorting import sort_pairs


class LoraCut(NamedTuple):
    """How the work is shared out among programs."""

    block: int = 256
    """Inputs a program reads at a time."""
    splits: int = 16
    """Most programs that share a tile's inputs: with few tokens there are few tiles, and one program would take long."""
    shrink_warps: int = 4
    stages: int = 3
    rows: int = 128
    """Outputs of a program."""
    expand_warps: int = 4
    gated_rows: int = 128
    gated_warps: int = 4
    programs: int = 1024
    """Most programs of a launch: more than the chip holds at once gain nothing."""
    is_early: bool = True
    """Expanding begins while shrinking goes on."""
    is_aside: bool = False
    """Shrinking goes on beside the product, on a stream of its own."""


CUT = LoraCut()


@entry
@triton.jit(do_not_specialize=["num_tiles"])
def _compact(
    order, found, tokens, slots, counts, num_tiles, PAD: tl.constexpr, TILE: tl.constexpr, CHAINS: tl.constexpr
):
    """One tile to its place: those of adapters come first, then those of none, in their order."""
    await_others(CHAINS)
    own = tl.program_id(0)
    numbers = tl.arange(0, PAD)
    every = tl.load(found + numbers * 3, mask=numbers < num_tiles, other=-1)
    slot = tl.load(found + own * 3)
    start = tl.load(found + own * 3 + 1)
    end = tl.load(found + own * 3 + 2)
    kinds = tl.where(every > 0, 0, tl.where(every == 0, 1, 2))
    kind = tl.where(slot > 0, 0, tl.where(slot == 0, 1, 2))
    is_before = (kinds < kind) | ((kinds == kind) & (numbers < own))
    place = tl.sum((is_before & (numbers < num_tiles)).to(tl.int32), axis=0)
    lanes = start + tl.arange(0, TILE)
    taken = tl.load(order + lanes, mask=lanes < end, other=-1)
    tl.store(tokens + place * TILE + tl.arange(0, TILE), taken)
    tl.store(slots + place, tl.where(slot < 0, -1, slot))
    if own == 0:
        tl.store(counts, tl.sum((kinds == 0).to(tl.int32), axis=0))
        tl.store(counts + 1, tl.sum(((kinds < 2) & (numbers < num_tiles)).to(tl.int32), axis=0))


@tile_tokens.kernel("cuda", fits=lambda slots, num_slots: len(slots) > 0)
def compact_tiles(slots: Tensor, num_slots: int) -> TokenTiles:
    tile, device = lora_tile(len(slots)), slots.device
    order, found = sort_pairs(slots.contiguous()[:, None], num_slots, tile)
    num_tiles = len(found)
    tokens = torch.empty((num_tiles, tile), dtype=torch.int32, device=device)
    owners = torch.empty(num_tiles, dtype=torch.int32, device=device)
    counts = torch.empty(2, dtype=torch.int32, device=device)
    pad = max(32, triton.next_power_of_2(num_tiles))
    _compact[(num_tiles,)](order, found, tokens, owners, counts, num_tiles, pad, tile, **chained())
    return TokenTiles(tokens, owners, counts)


@entry
@triton.jit(do_not_specialize=["num_rows"])
def _shrink(
    x, tokens, slots, counts, numbers, places, out, num_rows, room, stride,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """WIDTH is the room for a part's ranks, RANKS how many are computed together, PAD those of all parts."""
    if EARLY:
        release_next(CHAINS)
    lanes = tl.arange(0, TILE)
    joined = tl.arange(0, PAD)
    part = joined // RANKS
    columns = tl.arange(0, BLOCK)
    for piece in tl.range(tl.program_id(0), tl.load(counts) * SPLITS, tl.num_programs(0), num_stages=1):
        tile = piece // SPLITS
        split = piece % SPLITS
        slot = tl.load(slots + tile).to(tl.int64)
        taken = tl.load(tokens + tile * TILE + lanes).to(tl.int64)
        rank = tl.multiple_of(tl.load(places + slot * stride), 16)
        a = numbers + (slot - 1) * room + tl.multiple_of(tl.load(places + slot * stride + 1), 16)
        rows = x + taken[:, None] * COLUMNS
        is_token = (taken >= 0)[:, None]
        for above in tl.range(0, rank, RANKS, num_stages=1):
            ranks = above + joined % RANKS
            there = ((part < PARTS) & (ranks < rank))[None, :]
            lines = a + (part * rank + ranks)[None, :] * COLUMNS
            total = tl.zeros([TILE, PAD], tl.float32)
            for begin in tl.range(split * BLOCK, COLUMNS, SPLITS * BLOCK, num_stages=STAGES):
                inside = begin + columns < COLUMNS
                read = tl.load(rows + begin + columns[None, :], mask=inside[None, :] & is_token, other=0.0)
                weights = tl.load(lines + begin + columns[:, None], mask=inside[:, None] & there, other=0.0)
                total = tl.dot(read.to(weights.dtype), weights, total, input_precision="ieee")
            await_others(CHAINS)
            target = out + (split * num_rows + tile * TILE + lanes).to(tl.int64)[:, None] * (PARTS * WIDTH)
            tl.store(target + (part * WIDTH + ranks)[None, :], total, mask=is_token & there)
    await_others(CHAINS)


@triton.jit
def _sum(shrunk, rows, mask, num_rows, ranks, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """A tile's sums, over all programs that had a share of the inputs; WIDTH are the numbers of a token."""
    at = shrunk + rows.to(tl.int64)[:, None] * WIDTH + ranks[None, :]
    total = tl.load(at, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(at + split * num_rows.to(tl.int64) * WIDTH, mask=mask, other=0.0)
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
@triton.jit(do_not_specialize=["num_rows"])
def _expand(
    shrunk, tokens, slots, counts, numbers, places, factors, bias, y, num_rows, room, stride, factor_stride,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    SPLITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, BIAS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs, which lie in one part. SECOND and THIRD are where parts begin."""
    lanes = tl.arange(0, TILE)
    numbered = tl.arange(0, RANKS)
    count = tl.load(counts)
    pieces = count * tl.cdiv(OUTPUTS, ROWS)
    for piece in tl.range(tl.program_id(0), pieces, tl.num_programs(0), num_stages=1):
        first = (piece // count) * ROWS
        tile = piece % count
        rows = first + tl.arange(0, ROWS)
        inside = rows < OUTPUTS
        ours = shrunk + ((first >= SECOND).to(tl.int32) + (first >= THIRD).to(tl.int32)) * WIDTH
        slot = tl.load(slots + tile).to(tl.int64)
        taken = tl.load(tokens + tile * TILE + lanes).to(tl.int64)
        told = places + slot * stride
        rank = tl.multiple_of(tl.load(told), 16)
        lines = numbers + (slot - 1) * room + tl.multiple_of(tl.load(told + 2), 16) + rows[:, None].to(tl.int64) * rank
        weights = tl.load(lines + numbered[None, :], mask=inside[:, None] & (numbered < rank)[None, :], other=0.0)
        is_token = (taken >= 0)[:, None]
        await_others(CHAINS)
        if rank > 0:
            target = y + taken[:, None] * OUTPUTS + rows[None, :]
            mask = is_token & inside[None, :]
            before = tl.load(target, mask=mask, other=0.0).to(tl.float32)
            if tl.load(told + 3) != 0:
                before = _scaled(before, factors, bias, slot, rows, inside, factor_stride, BIAS)
            for above in tl.range(0, rank, RANKS, num_stages=1):
                ranks = above + numbered
                sums = _sum(ours, tile * TILE + lanes, is_token, num_rows, ranks, PARTS * WIDTH, SPLITS)
                before = tl.dot(sums.to(weights.dtype), tl.trans(weights), before, input_precision="ieee")
                more = inside[:, None] & (ranks + RANKS < rank)[None, :]
                weights = tl.load(lines + (ranks + RANKS)[None, :], mask=more, other=0.0)
            tl.store(target, before.to(y.dtype.element_ty), mask=mask)
    await_others(CHAINS)


@entry
@triton.jit(do_not_specialize=["num_rows"])
def _expand_gated(
    shrunk, tokens, slots, counts, numbers, places, factors, bias, y, out, num_rows, room, stride, factor_stride,
    HALF: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, RANKS: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr,
    SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs of both halves. Tokens without an adapter are gated here too."""
    lanes = tl.arange(0, TILE)
    numbered = tl.arange(0, RANKS)
    count = tl.load(counts + 1)
    pieces = count * tl.cdiv(HALF, ROWS)
    for piece in tl.range(tl.program_id(0), pieces, tl.num_programs(0), num_stages=1):
        rows = (piece // count) * ROWS + tl.arange(0, ROWS)
        tile = piece % count
        inside = rows < HALF
        slot = tl.load(slots + tile).to(tl.int64)
        taken = tl.load(tokens + tile * TILE + lanes).to(tl.int64)
        told = places + slot * stride
        rank = tl.multiple_of(tl.load(told), 16)
        lines = numbers + (slot - 1) * room + tl.multiple_of(tl.load(told + 2), 16) + rows[:, None].to(tl.int64) * rank
        there = inside[:, None] & (numbered < rank)[None, :]
        gate_weights = tl.load(lines + numbered[None, :], mask=there, other=0.0)
        up_weights = tl.load(lines + HALF * rank + numbered[None, :], mask=there, other=0.0)
        is_token = (taken >= 0)[:, None]
        await_others(CHAINS)
        source = y + taken[:, None] * (2 * HALF) + rows[None, :]
        mask = is_token & inside[None, :]
        gates = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        ups = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
        if tl.load(told + 3) != 0:
            gates = _scaled(gates, factors, bias, slot, rows, inside, factor_stride, BIAS)
            ups = _scaled(ups, factors + HALF, bias + HALF, slot, rows, inside, factor_stride, BIAS)
        for above in tl.range(0, rank, RANKS, num_stages=1):
            ranks = above + numbered
            sums = _sum(shrunk, tile * TILE + lanes, is_token, num_rows, ranks, PARTS * WIDTH, SPLITS)
            gates = tl.dot(sums.to(gate_weights.dtype), tl.trans(gate_weights), gates, input_precision="ieee")
            if PARTS > 1:
                sums = _sum(shrunk + WIDTH, tile * TILE + lanes, is_token, num_rows, ranks, PARTS * WIDTH, SPLITS)
            ups = tl.dot(sums.to(up_weights.dtype), tl.trans(up_weights), ups, input_precision="ieee")
            more = inside[:, None] & (ranks + RANKS < rank)[None, :]
            gate_weights = tl.load(lines + (ranks + RANKS)[None, :], mask=more, other=0.0)
            up_weights = tl.load(lines + HALF * rank + (ranks + RANKS)[None, :], mask=more, other=0.0)
        value = gated(gates, ups, out.dtype.element_ty, KIND, CLAMP, SHARPNESS)
        tl.store(out + taken[:, None] * HALF + rows[None, :], value.to(out.dtype.element_ty), mask=mask)
    await_others(CHAINS)


def num_splits(num_tokens: int, columns: int) -> int:
    """Few for many tokens, whose tiles keep the chip busy; a power of two, so that few kernels are compiled."""
    num_tiles = -(-num_tokens // lora_tile(num_tokens))
    most = min(CUT.splits, max(1, columns // CUT.block), max(1, CUT.programs // num_tiles))
    return 1 << (most.bit_length() - 1)


def num_programs(tiles: TokenTiles, pieces: int) -> tuple[int]:
    """Programs that take pieces in turn, of which a tile has so many."""
    return (min(len(tiles.slots) * pieces, CUT.programs),)


def launched() -> dict[str, bool]:
    """What a launch is told: in the chain, or after everything that it follows."""
    return {"CHAINS": False} if CUT.is_aside else chained()


@cache
def side_of(device: torch.device) -> torch.cuda.Stream:
    """Where shrinking goes on beside the product."""
    return torch.cuda.Stream(device)


def shrunk_beside(
    x: Tensor, product: Product, tiles: TokenTiles, bank: LoraBank, num_parts: int
) -> tuple[Tensor, Tensor]:
    """The product, and what shrinking leaves: [splits, tiles x tile, parts x ranks]."""
    shape = num_splits(*x.shape), tiles.tokens.numel(), num_parts * bank.most_rank
    if not CUT.is_aside or x.device.type != "cuda":
        y = product()
        return y, shrink(x, tiles, bank, num_parts, torch.empty(shape, device=x.device))
    shrunk = torch.empty(shape, device=x.device)  # of the stream that goes on with it
    current, side = torch.cuda.current_stream(x.device), side_of(x.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        shrink(x, tiles, bank, num_parts, shrunk)
    y = product()
    current.wait_stream(side)
    return y, shrunk


def shrink(x: Tensor, tiles: TokenTiles, bank: LoraBank, num_parts: int, out: Tensor) -> Tensor:
    (num_tokens, columns), width = x.shape, bank.most_rank
    splits, num_rows, _ = out.shape
    _shrink[num_programs(tiles, splits)](
        x, *tiles, bank.numbers, bank.places, out, num_rows, bank.numbers.stride(0), bank.places.stride(0),
        columns, width, num_parts, RANK_STEP * triton.next_power_of_2(num_parts), splits, lora_tile(num_tokens),
        CUT.block, RANK_STEP, CUT.stages, CUT.is_early, **launched(), num_warps=CUT.shrink_warps,
    )  # fmt: skip
    return out


def _fits(
    x: Tensor,
    product: Product,
    bias: Tensor | None,
    tiles: TokenTiles | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
) -> bool:
    return tiles is not None and x.is_contiguous() and is_even(sizes) and len(x) > 0


@add_lora.kernel("cuda", fits=_fits)
def add_thin_products(
    x: Tensor,
    product: Product,
    bias: Tensor | None,
    tiles: TokenTiles | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
) -> Tensor:
    if tiles is None:
        raise ValueError("tokens have to be sorted by adapter")
    y, shrunk = shrunk_beside(x, product, tiles, bank, len(sizes))
    num_tokens, outputs = y.shape
    widths = [CUT.rows >> power for power in range(4)]
    rows = next((count for count in widths if all(size % count == 0 for size in sizes)), RANK_STEP)
    second = sizes[0] if len(sizes) > 1 else outputs
    third = sizes[0] + sizes[1] if len(sizes) > 2 else outputs
    _expand[num_programs(tiles, triton.cdiv(outputs, rows))](
        shrunk, *tiles, bank.numbers, bank.places, bank.factors, y if bias is None else bias, y,
        shrunk.shape[1], bank.numbers.stride(0), bank.places.stride(0), bank.factors.stride(0),
        outputs, bank.most_rank, len(sizes), second, third, len(shrunk), lora_tile(num_tokens), rows, RANK_STEP,
        bias is not None, **launched(), num_warps=CUT.expand_warps,
    )  # fmt: skip
    return y


def _gated_fits(
    x: Tensor,
    product: Product,
    bias: Tensor | None,
    tiles: TokenTiles | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> bool:
    return tiles is not None and x.is_contiguous() and len(x) > 0


@add_lora_gated.kernel("cuda", fits=_gated_fits)
def gate_thin_products(
    x: Tensor,
    product: Product,
    bias: Tensor | None,
    tiles: TokenTiles | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> Tensor:
    if tiles is None:
        raise ValueError("tokens have to be sorted by adapter")
    y, shrunk = shrunk_beside(x, product, tiles, bank, len(sizes))
    num_tokens, half, rows = y.shape[0], y.shape[1] // 2, CUT.gated_rows
    out = torch.empty((num_tokens, half), dtype=y.dtype, device=y.device)
    _expand_gated[num_programs(tiles, triton.cdiv(half, rows))](
        shrunk, *tiles, bank.numbers, bank.places, bank.factors, y if bias is None else bias, y, out,
        shrunk.shape[1], bank.numbers.stride(0), bank.places.stride(0), bank.factors.stride(0),
        half, bank.most_rank, len(sizes), len(shrunk), lora_tile(num_tokens), rows, RANK_STEP, bias is not None,
        KINDS[activation], CLAMP, SHARPNESS, **launched(), num_warps=CUT.gated_warps,
    )  # fmt: skip
    return out
