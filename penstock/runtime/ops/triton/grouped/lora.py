"""What adapters add to a product, in two launches for all tokens and all joined modules.

    tile     once a step: tokens sorted by adapter and cut into tiles, each told where its adapter's matrices lie
    shrink   A of all parts times a tile, the inputs shared out among programs: sums that are not added up yet
    expand   those sums added up, some rows of B times them, added to the product; with a gate, gated right away

Few tokens make few operations: what counts is how many reads wait for one another. Of few tokens shrinking goes on beside the
product, which leaves processors idle, on a stream of its own. Of many it follows the product, waits only before it writes, and
lets expanding begin at once: that reads B meanwhile, and waits before it touches anything else. Loads are not moved from one
turn of a loop to another (`num_stages=1`): what a launch waits for must not be read before.
"""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.grouped.lora import (
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
from penstock.runtime.ops.triton.grouped.sorting import sort_pairs
from penstock.runtime.ops.triton.host.chain import await_others, chained, release_next
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import tiles_of

WIDE_TILE = 64
PLACES_RUN = 256


@entry
@triton.jit(do_not_specialize=["num_tiles", "num_places"])
def _describe(
    order, found, places, tokens, slots, tile_places, counts, num_tiles, num_places,
    TILE: tl.constexpr, RUN: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """A tile's tokens, its adapter, and where that has its matrices, of every product."""
    await_others(CHAINS)
    tile = tl.program_id(0)
    slot = tl.load(found + tile * 3)
    start = tl.load(found + tile * 3 + 1)
    end = tl.load(found + tile * 3 + 2)
    lanes = start + tl.arange(0, TILE)
    tl.store(tokens + tile * TILE + tl.arange(0, TILE), tl.load(order + lanes, mask=lanes < end, other=-1))
    tl.store(slots + tile, slot)
    tl.store(counts + tile, 0)
    num_there = tl.where(slot > 0, num_places, 0)
    for begin in range(0, num_places, RUN):
        numbers = begin + tl.arange(0, RUN)
        read = tl.load(places + slot * num_places + numbers, mask=numbers < num_there, other=0)
        tl.store(tile_places + tile * num_places + numbers, read, mask=numbers < num_places)


@tile_tokens.kernel("cuda", fits=lambda slots, places: len(slots) > 0)
def describe_tiles(slots: Tensor, places: Tensor) -> TokenTiles:
    tile, device = lora_tile(len(slots)), slots.device
    order, found = sort_pairs(slots.contiguous()[:, None], len(places), tile)
    num_tiles = len(found)
    tokens = torch.empty((num_tiles, tile), dtype=torch.int32, device=device)
    owners = torch.empty(num_tiles, dtype=torch.int32, device=device)
    tile_places = torch.empty((num_tiles, *places.shape[1:]), dtype=torch.int32, device=device)
    counts = torch.empty_like(owners)
    _describe[(num_tiles,)](
        order, found, places, tokens, owners, tile_places, counts, num_tiles, places[0].numel(), tile, PLACES_RUN, **chained(),
    )  # fmt: skip
    return TokenTiles(tokens, owners, tile_places, counts)


@triton.jit
def _add_up(
    out, sums, counts, tile, rank, part, num_tiles,
    PARTS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, RANKS: tl.constexpr,
    PAD: tl.constexpr,
):  # fmt: skip
    """The last of a tile's programs adds up what they have left, in their order."""
    size: tl.constexpr = PARTS * WIDTH * TILE
    if tl.atomic_add(counts + tile, 1, sem="acq_rel") == SPLITS - 1:
        tl.store(counts + tile, 0)
        for above in tl.range(0, rank, RANKS, num_stages=1):
            ranks = above + tl.arange(0, PAD) % RANKS
            there = ((part < PARTS) & (ranks < rank))[:, None]
            at = tile.to(tl.int64) * size + (part * WIDTH + ranks)[:, None] * TILE + tl.arange(0, TILE)[None, :]
            total = tl.load(out + at, mask=there, other=0.0, cache_modifier=".cg")
            for split in tl.static_range(1, SPLITS):
                more = out + split * num_tiles.to(tl.int64) * size + at
                total += tl.load(more, mask=there, other=0.0, cache_modifier=".cg")
            tl.store(sums + at, total.to(sums.dtype.element_ty), mask=there)


@entry
@triton.jit(do_not_specialize=["num_tiles"])
def _shrink(
    x, tokens, slots, places, counts, numbers, out, sums, num_tiles, room, stride,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, RANKS: tl.constexpr, STAGES: tl.constexpr, SUMMED: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """WIDTH is the room for a part's ranks, RANKS how many are computed together, PAD those of all parts."""
    release_next(CHAINS)
    split = tl.program_id(0)
    tile = tl.program_id(1)
    lanes = tl.arange(0, TILE)
    joined = tl.arange(0, PAD)
    part = joined // RANKS
    columns = tl.arange(0, BLOCK)
    slot = tl.load(slots + tile).to(tl.int64)
    rank = tl.multiple_of(tl.load(places + tile * stride), 16)
    at = tl.multiple_of(tl.load(places + tile * stride + 1), 16)
    taken = tl.load(tokens + tile * TILE + lanes).to(tl.int64)
    a = numbers + (slot - 1) * room + at
    rows = x + taken[None, :] * COLUMNS
    is_token = (taken >= 0)[None, :]
    target = out + (split * num_tiles + tile).to(tl.int64) * (PARTS * WIDTH * TILE) + lanes[None, :]
    for above in tl.range(0, rank, RANKS, num_stages=1):
        ranks = above + joined % RANKS
        there = ((part < PARTS) & (ranks < rank))[:, None]
        lines = a + (part * rank + ranks)[:, None] * COLUMNS
        total = tl.zeros([PAD, TILE], tl.float32)
        for begin in tl.range(split * BLOCK, COLUMNS, SPLITS * BLOCK, num_stages=STAGES):
            inside = begin + columns < COLUMNS
            weights = tl.load(lines + begin + columns[None, :], mask=inside[None, :] & there, other=0.0)
            read = tl.load(rows + begin + columns[:, None], mask=inside[:, None] & is_token, other=0.0)
            total = tl.dot(weights, read.to(weights.dtype), total, input_precision="ieee")
        await_others(CHAINS)
        tl.store(target + (part * WIDTH + ranks)[:, None] * TILE, total, mask=there)
    if SUMMED:
        tl.debug_barrier()  # what all of the program has stored comes before it is counted
        _add_up(out, sums, counts, tile, rank, part, num_tiles, PARTS, WIDTH, TILE, SPLITS, RANKS, PAD)
    await_others(CHAINS)


@triton.jit
def _sum(shrunk, ranks, lanes, num_numbers, TILE: tl.constexpr, SPLITS: tl.constexpr):
    """A tile's sums of some ranks, over all programs that had a share of the inputs."""
    at = shrunk + ranks[:, None] * TILE + lanes[None, :]
    total = tl.load(at)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(at + split * num_numbers)
    return total


@triton.jit
def _scaled(before, factors, bias, slot, rows, inside, factor_stride, BIAS: tl.constexpr):
    """The plain product times an adapter's factors; a bias is none of it."""
    scales = tl.load(factors + slot * factor_stride + rows, mask=inside, other=0.0)[:, None]
    if BIAS:
        added = tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)[:, None]
        return (before - added) * scales + added
    else:
        return before * scales


@entry
@triton.jit(do_not_specialize=["num_tiles"])
def _expand(
    shrunk, tokens, slots, places, numbers, factors, bias, y, num_tiles, room, stride, factor_stride,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    SPLITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, BIAS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs, which lie in one part. SECOND and THIRD are where parts begin."""
    tile = tl.program_id(0)
    first = tl.program_id(1) * ROWS
    lanes = tl.arange(0, TILE)
    numbered = tl.arange(0, RANKS)
    rows = first + tl.arange(0, ROWS)
    inside = rows < OUTPUTS
    slot = tl.load(slots + tile).to(tl.int64)
    rank = tl.multiple_of(tl.load(places + tile * stride), 16)
    at = tl.multiple_of(tl.load(places + tile * stride + 2), 16)
    is_scaled = tl.load(places + tile * stride + 3) != 0
    taken = tl.load(tokens + tile * TILE + lanes).to(tl.int64)
    if rank > 0:
        lines = numbers + (slot - 1) * room + at + rows[:, None].to(tl.int64) * rank
        weights = tl.load(lines + numbered[None, :], mask=inside[:, None], other=0.0)
        await_others(CHAINS)
        target = y + taken[None, :] * OUTPUTS + rows[:, None]
        mask = (taken >= 0)[None, :] & inside[:, None]
        before = tl.load(target, mask=mask, other=0.0).to(tl.float32)
        if is_scaled:
            before = _scaled(before, factors, bias, slot, rows, inside, factor_stride, BIAS)
        num_numbers = num_tiles.to(tl.int64) * (PARTS * WIDTH * TILE)
        part = (first >= SECOND).to(tl.int32) + (first >= THIRD).to(tl.int32)
        ours = shrunk + (tile.to(tl.int64) * PARTS + part) * (WIDTH * TILE)
        for above in tl.range(0, rank, RANKS, num_stages=1):
            sums = _sum(ours, above + numbered, lanes, num_numbers, TILE, SPLITS)
            before = tl.dot(weights, sums.to(weights.dtype), before, input_precision="ieee")
            following = above + RANKS + numbered
            weights = tl.load(lines + following[None, :], mask=inside[:, None] & (following < rank)[None, :], other=0.0)
        tl.store(target, before.to(y.dtype.element_ty), mask=mask)
    await_others(CHAINS)


@entry
@triton.jit(do_not_specialize=["num_tiles"])
def _expand_gated(
    shrunk, tokens, slots, places, numbers, factors, bias, y, out, num_tiles, room, stride, factor_stride,
    HALF: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, RANKS: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr,
    SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """ROWS outputs of both halves. Tokens without an adapter are gated here too."""
    tile = tl.program_id(0)
    lanes = tl.arange(0, TILE)
    numbered = tl.arange(0, RANKS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = rows < HALF
    slot = tl.load(slots + tile).to(tl.int64)
    rank = tl.multiple_of(tl.load(places + tile * stride), 16)
    at = tl.multiple_of(tl.load(places + tile * stride + 2), 16)
    is_scaled = tl.load(places + tile * stride + 3) != 0
    taken = tl.load(tokens + tile * TILE + lanes).to(tl.int64)
    if slot >= 0:
        lines = numbers + (slot - 1) * room + at + rows[:, None].to(tl.int64) * rank
        there = inside[:, None] & (numbered < rank)[None, :]
        gate_weights = tl.load(lines + numbered[None, :], mask=there, other=0.0)
        up_weights = tl.load(lines + HALF * rank + numbered[None, :], mask=there, other=0.0)
        await_others(CHAINS)
        source = y + taken[None, :] * (2 * HALF) + rows[:, None]
        mask = (taken >= 0)[None, :] & inside[:, None]
        gates = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        ups = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
        if is_scaled:
            gates = _scaled(gates, factors, bias, slot, rows, inside, factor_stride, BIAS)
            ups = _scaled(ups, factors + HALF, bias + HALF, slot, rows, inside, factor_stride, BIAS)
        num_numbers = num_tiles.to(tl.int64) * (PARTS * WIDTH * TILE)
        ours = shrunk + tile.to(tl.int64) * (PARTS * WIDTH * TILE)
        for above in tl.range(0, rank, RANKS, num_stages=1):
            sums = _sum(ours, above + numbered, lanes, num_numbers, TILE, SPLITS)
            gates = tl.dot(gate_weights, sums.to(gate_weights.dtype), gates, input_precision="ieee")
            if PARTS > 1:
                sums = _sum(ours + WIDTH * TILE, above + numbered, lanes, num_numbers, TILE, SPLITS)
            ups = tl.dot(up_weights, sums.to(up_weights.dtype), ups, input_precision="ieee")
            following = above + RANKS + numbered
            more = inside[:, None] & (following < rank)[None, :]
            gate_weights = tl.load(lines + following[None, :], mask=more, other=0.0)
            up_weights = tl.load(lines + HALF * rank + following[None, :], mask=more, other=0.0)
        value = gated(gates, ups, out.dtype.element_ty, KIND, CLAMP, SHARPNESS)
        tl.store(out + taken[None, :] * HALF + rows[:, None], value.to(out.dtype.element_ty), mask=mask)
    await_others(CHAINS)


def num_splits(columns: int) -> int:
    """A power of two, so that few kernels are compiled."""
    config = tiles_of("adapters shrink")
    most = min(config.splits, max(1, columns // config.block))
    return 1 << (most.bit_length() - 1)


@cache
def side_of(device: torch.device) -> torch.cuda.Stream:
    """Where shrinking goes on beside the product."""
    return torch.cuda.Stream(device)


def shrunk_beside(
    x: Tensor, product: Product, tiles: TokenTiles, bank: LoraBank, num_parts: int
) -> tuple[Tensor, Tensor, dict[str, bool]]:
    """The product, what shrinking leaves, and what the next launch is told: it follows both, or is in the chain."""
    shape = num_splits(x.shape[1]), len(tiles.slots), num_parts * bank.most_rank * tiles.tokens.shape[1]
    shrunk = torch.empty(shape, device=x.device)
    if tiles.tokens.shape[1] == WIDE_TILE:
        y, how = product(), chained()
        return y, shrink(x, tiles, bank, num_parts, shrunk, how), how
    sums = torch.empty((1, *shape[1:]), dtype=bank.numbers.dtype, device=x.device)
    arguments = x, tiles, bank, num_parts, shrunk, {"CHAINS": False}, sums
    if not x.is_cuda:  # an interpreter's
        return product(), shrink(*arguments), {"CHAINS": False}
    current, side = torch.cuda.current_stream(x.device), side_of(x.device)
    side.wait_stream(current)
    y = product()  # first: it leaves processors idle, and shrinking leaves it few
    with torch.cuda.stream(side):
        made = shrink(*arguments)
    current.wait_stream(side)
    return y, made, {"CHAINS": False}


def shrink(
    x: Tensor,
    tiles: TokenTiles,
    bank: LoraBank,
    num_parts: int,
    out: Tensor,
    how: dict[str, bool],
    sums: Tensor | None = None,
) -> Tensor:
    places, tile = tiles.places[:, bank.number], tiles.tokens.shape[1]
    splits, num_tiles, _ = out.shape
    config = tiles_of("adapters shrink", num_rows=tile)
    _shrink[splits, num_tiles](
        x, *tiles[:2], places, tiles.counts, bank.numbers, out, out if sums is None else sums, num_tiles,
        bank.numbers.stride(0), places.stride(0),
        x.shape[1], bank.most_rank, num_parts, RANK_STEP * triton.next_power_of_2(num_parts), splits, tile,
        config.block, RANK_STEP, config.stages, sums is not None, **how, num_warps=config.warps,
    )  # fmt: skip
    return out if sums is None else sums


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
    y, shrunk, how = shrunk_beside(x, product, tiles, bank, len(sizes))
    places, outputs, config = tiles.places[:, bank.number], y.shape[1], tiles_of("adapters expand")
    widths = [config.rows >> power for power in range(4)]
    rows = next((count for count in widths if all(size % count == 0 for size in sizes)), RANK_STEP)
    second = sizes[0] if len(sizes) > 1 else outputs
    third = sizes[0] + sizes[1] if len(sizes) > 2 else outputs
    _expand[len(places), triton.cdiv(outputs, rows)](
        shrunk, tiles.tokens, tiles.slots, places, bank.numbers, bank.factors, y if bias is None else bias, y,
        len(places), bank.numbers.stride(0), places.stride(0), bank.factors.stride(0),
        outputs, bank.most_rank, len(sizes), second, third, len(shrunk), tiles.tokens.shape[1], rows, RANK_STEP,
        bias is not None, **how, num_warps=config.warps,
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
    y, shrunk, how = shrunk_beside(x, product, tiles, bank, len(sizes))
    places, half = tiles.places[:, bank.number], y.shape[1] // 2
    config = tiles_of("adapters expand gated", num_rows=tiles.tokens.shape[1])
    out = torch.empty((len(y), half), dtype=y.dtype, device=y.device)
    _expand_gated[len(places), triton.cdiv(half, config.rows)](
        shrunk, tiles.tokens, tiles.slots, places, bank.numbers, bank.factors, y if bias is None else bias, y, out,
        len(places), bank.numbers.stride(0), places.stride(0), bank.factors.stride(0),
        half, bank.most_rank, len(sizes), len(shrunk), tiles.tokens.shape[1], config.rows, RANK_STEP, bias is not None,
        KINDS[activation], CLAMP, SHARPNESS, **how, num_warps=config.warps,
    )  # fmt: skip
    return out
