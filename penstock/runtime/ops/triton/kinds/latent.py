"""Attention over paged latents: a tile of latents is read once, as keys and as values, for all heads of a program's queries.
Before it, latents and queries are made ready in one launch."""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import MLA
from penstock.runtime.ops.kinds.latent import LatentPlaces, latent_attention, place_latents
from penstock.runtime.ops.layout import BatchLayout, LatentCache
from penstock.runtime.ops.triton.attend import decode
from penstock.runtime.ops.triton.attend.decode_kernels import join_heads
from penstock.runtime.ops.triton.attend.paged import LOG2_E, slots_of
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of

MAX_ROWS = 64
"""Queries times heads of a program."""


@triton.jit
def _turned(source, cos, sin, mask):
    """Neighbours of a source, turned: the firsts, then the seconds."""
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + 1, mask=mask, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@entry
@triton.jit
def _place(
    q, made, queries, weight, cosine, sine, latents, slots, eps,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, RANK: tl.constexpr, RANK_PAD: tl.constexpr,
    PLAIN: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One token."""
    await_others(CHAINS)
    token = tl.program_id(0).to(tl.int64)
    width: tl.constexpr = RANK + 2 * HALF
    place = latents + tl.load(slots + token).to(tl.int64) * width
    column = tl.arange(0, RANK_PAD)
    source = made + token * width
    numbers = tl.load(source + column, mask=column < RANK, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, axis=0) / RANK + eps)
    normed = numbers * scale * tl.load(weight + column, mask=column < RANK, other=0.0)
    tl.store(place + column, normed.to(made.dtype.element_ty).to(latents.dtype.element_ty), mask=column < RANK)
    pair = tl.arange(0, HALF_PAD)
    is_pair = pair < HALF
    cos = tl.load(cosine + token * HALF + pair, mask=is_pair, other=0.0)
    sin = tl.load(sine + token * HALF + pair, mask=is_pair, other=0.0)
    first, second = _turned(source + RANK + 2 * pair, cos, sin, is_pair)
    tl.store(place + RANK + pair, first.to(made.dtype.element_ty).to(latents.dtype.element_ty), mask=is_pair)
    tl.store(place + RANK + HALF + pair, second.to(made.dtype.element_ty).to(latents.dtype.element_ty), mask=is_pair)
    head = token * HEADS + tl.arange(0, HEADS_PAD)[:, None]
    is_there = (tl.arange(0, HEADS_PAD) < HEADS)[:, None] & is_pair[None, :]
    first, second = _turned(
        queries + head * (PLAIN + 2 * HALF) + PLAIN + 2 * pair[None, :], cos[None, :], sin[None, :], is_there
    )
    target = q + head * width + RANK + pair[None, :]
    tl.store(target, first.to(q.dtype.element_ty), mask=is_there)
    tl.store(target + HALF, second.to(q.dtype.element_ty), mask=is_there)


def _fits_place(q: Tensor, made: Tensor, queries: Tensor, places: LatentPlaces, cache: LatentCache, spec: MLA) -> bool:
    return len(q) > 0 and all(each.is_contiguous() for each in (q, made, queries, cache.latents))


@place_latents.kernel("cuda", fits=_fits_place)
def place_tokens(q: Tensor, made: Tensor, queries: Tensor, places: LatentPlaces, cache: LatentCache, spec: MLA) -> None:
    half = spec.rope.dim // 2
    _place[(len(q),)](
        q, made, queries, places.weight, *places.angles, cache.latents, places.slots, places.eps,
        HEADS=spec.num_heads, HEADS_PAD=triton.next_power_of_2(spec.num_heads), RANK=spec.kv_rank,
        RANK_PAD=triton.next_power_of_2(spec.kv_rank), PLAIN=spec.plain_dim, HALF=half,
        HALF_PAD=triton.next_power_of_2(half), **chained(), num_warps=4,
    )  # fmt: skip


@entry
@triton.jit(
    do_not_specialize=["table_width"],
    do_not_specialize_on_alignment=["tables", "chunks", "firsts", "counts", "places", "contexts", "peaks", "sums"],
)
def _attend(
    q, latents, tables, chunks, firsts, counts, places, contexts, out, partial, peaks, sums, scale, table_width,
    HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, RANK: tl.constexpr, RANK_PAD: tl.constexpr,
    TURNED: tl.constexpr, TURNED_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """A few queries of one chunk, one after another, with GROUP heads each, over one of SPLITS runs of latents.

    A latent is RANK numbers, which are key and value, then TURNED numbers of a rotated key.
    """
    await_others(CHAINS)
    tile = tl.program_id(0)
    first_head = tl.program_id(1) * GROUP
    split = tl.program_id(2)
    width: tl.constexpr = RANK + TURNED
    chunk = tl.load(chunks + tile).to(tl.int64)
    token = tl.load(firsts + tile).to(tl.int64)
    count = tl.load(counts + tile)
    start = tl.load(places + token).to(tl.int32)
    end = tl.minimum(start + count, tl.load(contexts + chunk)) * tl.minimum(count, 1)  # what is past it is padding
    span = tl.cdiv(tl.cdiv(end, TILE), SPLITS) * TILE
    low = split * span
    high = tl.minimum(low + span, end)

    rows = tl.arange(0, ROWS)
    number = rows // GROUP
    head = first_head + rows % GROUP
    is_row = (number < count) & (head < HEADS)
    seen = start + number + 1
    row_of = (token + number) * HEADS + head
    columns = tl.arange(0, RANK_PAD)[None, :]
    turned = tl.arange(0, TURNED_PAD)[None, :]
    query = tl.load(q + row_of[:, None] * width + columns, mask=is_row[:, None] & (columns < RANK), other=0.0)
    query_turned = tl.load(
        q + row_of[:, None] * width + RANK + turned, mask=is_row[:, None] & (turned < TURNED), other=0.0
    )
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, RANK_PAD], tl.float32)
    for begin in range(low, high, TILE):
        positions = begin + tl.arange(0, TILE)
        inside = positions < high
        slot = slots_of(tables, chunk * table_width, positions, inside, BLOCK_SIZE)[:, None] * width
        latent = tl.load(latents + slot + columns, mask=inside[:, None] & (columns < RANK), other=0.0)
        key = tl.load(latents + slot + RANK + turned, mask=inside[:, None] & (turned < TURNED), other=0.0)
        latent, key = latent.to(query.dtype), key.to(query.dtype)
        scores = tl.dot(query, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(query_turned, tl.trans(key), scores, input_precision="ieee") * scale
        scores = tl.where(inside[None, :] & (positions[None, :] < seen[:, None]), scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(peak - safe)
        total = total * fade + tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(query.dtype), latent, mixed * fade[:, None], input_precision="ieee")
        peak = higher
    is_number = is_row[:, None] & (columns < RANK)
    if SPLITS == 1:
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + row_of[:, None] * RANK + columns, mixed.to(out.dtype.element_ty), mask=is_number)
    else:
        base = row_of * SPLITS + split
        tl.store(peaks + base, peak, mask=is_row)
        tl.store(sums + base, total, mask=is_row)
        tl.store(partial + base[:, None] * RANK + columns, mixed, mask=is_number)


class Tiles(NamedTuple):
    """Queries of a chunk that a program takes: whose they are, their first token, how many (0 for none); [tiles] each."""

    chunks: Tensor
    firsts: Tensor
    counts: Tensor


def tiles_for(num_programs: int, num_rows: int, q: Tensor) -> TileConfig:
    """With as many runs of a sequence's latents as keep the chip busy."""
    splits = min(triton.next_power_of_2(max(decode.PROGRAMS // num_programs, 1)), decode.MAX_SPLITS)
    return replace(tiles_of("attention of latents", num_rows=num_rows, value_bytes=q.element_size()), splits=splits)


@latent_attention.kernel("cuda")
def attend_latents(
    q: Tensor, cache: LatentCache, layout: BatchLayout, spec: MLA, config: TileConfig | None = None
) -> Tensor:
    group = min(triton.next_power_of_2(spec.num_heads), MAX_ROWS)
    each = MAX_ROWS // group if len(layout.lengths) < q.shape[0] else 1
    tiles = _tiles(layout, each, q.shape[0])
    num_groups = -(-spec.num_heads // group)
    num_rows = max(group * each, 16)
    config = config or tiles_for(tiles.chunks.shape[0] * num_groups, num_rows, q)
    splits, rank, turned = config.splits, spec.kv_rank, spec.rope.dim
    count = q.shape[0]
    out = torch.empty((count, spec.num_heads, rank), dtype=q.dtype, device=q.device)
    partial = torch.empty((count, spec.num_heads, splits, rank if splits > 1 else 0), device=q.device)
    peaks, sums = torch.empty((2, count, spec.num_heads, splits), device=q.device)
    _attend[(tiles.chunks.shape[0], num_groups, splits)](
        q.contiguous(),
        cache.latents,
        layout.block_tables,
        *tiles,
        layout.positions,
        layout.context_lengths,
        out,
        partial,
        peaks,
        sums,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        HEADS=spec.num_heads,
        GROUP=group,
        ROWS=num_rows,
        RANK=rank,
        RANK_PAD=max(triton.next_power_of_2(rank), 16),
        TURNED=turned,
        TURNED_PAD=max(triton.next_power_of_2(turned), 16),
        BLOCK_SIZE=cache.block_size,
        TILE=config.block,
        SPLITS=splits,
        **chained(),
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        join_heads[(count, spec.num_heads)](
            out, partial, peaks, sums, peaks, HEADS=spec.num_heads, DIM=rank, PAD=triton.next_power_of_2(rank),
            SPLITS=splits, SINKS=False, LOG2_E=LOG2_E, **chained(), num_warps=2,
        )  # fmt: skip
    return out


def _tiles(layout: BatchLayout, each: int, num_tokens: int) -> Tiles:
    """Found once a step: every layer has the same. Those of a recorded step are found on the device, as many as there could
    be."""
    found = layout.derived.get(("latent tiles", each))
    if found is None:
        lengths = layout.query_starts.diff()
        by_chunk = (lengths + each - 1) // each
        ends = by_chunk.cumsum(0)
        most = sum(-(-length // each) for length in layout.lengths) or num_tokens // each + len(lengths)
        numbers = torch.arange(most, device=lengths.device)
        owners = torch.searchsorted(ends, numbers, right=True).clamp(max=len(lengths) - 1)
        offsets = (numbers - (ends - by_chunk)[owners]) * each
        counts = (lengths[owners] - offsets).clamp(0, each)
        firsts = torch.where(counts > 0, layout.query_starts[owners] + offsets, 0)
        found = layout.derived["latent tiles", each] = Tiles(owners.int(), firsts.int(), counts.int())
    return found
