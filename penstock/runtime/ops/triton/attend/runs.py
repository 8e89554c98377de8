"""Attention of runs of queries over the paged cache, tile by tile. Single queries among them are `decode`'s.

Nothing the size of queries x keys is ever stored.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import attention
from penstock.runtime.ops.layout import AnyCache, BatchLayout
from penstock.runtime.ops.triton.attend import dense
from penstock.runtime.ops.triton.attend.decode import Singles, attend_singles, common_width
from penstock.runtime.ops.triton.attend.paged import LOG2_E, capped, scales_of, shape, slots_of
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import IS_ASKING, entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of


@triton.jit
def _swept(
    peak, total, mixed, query, position, low, high, keys, values, key_scales, value_scales, tables, kv_head, scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SCALES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What queries have seen once they have seen keys low .. high too. Unless MASKED every query sees all of them."""
    columns = tl.arange(0, PAD)
    for begin in range(low, high, TILE):
        keys_at = begin + tl.arange(0, TILE)
        inside = keys_at < high
        if WINDOW:  # blocks behind the window may be another sequence's by now
            inside = inside & (keys_at > tl.min(position, axis=0) - WINDOW)
        slot = slots_of(tables, 0, keys_at, inside, BLOCK_SIZE)
        place = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns[None, :]
        if MASKED:
            is_key = inside[:, None] & (columns < DIM)[None, :]
            key = tl.load(keys + place, mask=is_key, other=0.0).to(query.dtype)
        elif DIM == PAD:
            key = tl.load(keys + place).to(query.dtype)
        else:
            key = tl.load(keys + place, mask=(columns < DIM)[None, :], other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SCALES:
            scores *= tl.load(key_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        scores = capped(scores, CAP, LOG2_E)
        if MASKED:
            seen = keys_at[None, :] <= position[:, None]
            if WINDOW:
                seen = seen & (keys_at[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        if WINDOW:
            safe = tl.where(higher == float("-inf"), 0.0, higher)
        else:
            safe = higher
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(peak - safe)
        if MASKED:
            value = tl.load(values + place, mask=is_key, other=0.0).to(query.dtype)
        elif DIM == PAD:
            value = tl.load(values + place).to(query.dtype)
        else:
            value = tl.load(values + place, mask=(columns < DIM)[None, :], other=0.0).to(query.dtype)
        total = total * fade + tl.sum(weights, axis=1)
        if SCALES:
            weights *= tl.load(value_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        mixed = tl.dot(weights.to(query.dtype), value, mixed * fade[:, None], input_precision="ieee")
        peak = higher
    return peak, total, mixed


@entry
@triton.jit(
    do_not_specialize=["table_width", "num_earlier", "filled"],
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "tile_chunks", "tile_offsets"],
)
def _runs(
    q, keys, values, key_scales, value_scales, tables, starts, contexts, tile_chunks, tile_offsets, sinks,
    out, scale, table_width, earlier, earlier_total, num_earlier, filled,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    LOG2_E: tl.constexpr, SINKS: tl.constexpr, SCALES: tl.constexpr, EARLIER: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """A tile of one chunk's queries, one head, over all keys the tile sees.

    keys   0 ........ num_earlier ......... clear .... last
           [ seen before | every query sees | masked ]
    """
    await_others(CHAINS)
    head = tl.program_id(0)
    tile = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    chunk = tl.load(tile_chunks + tile)
    if chunk < 0:
        return
    offset = tl.load(tile_offsets + tile)
    start = tl.load(starts + chunk)
    length = tl.load(starts + chunk + 1) - start
    before = tl.load(contexts + chunk) - length
    rows = offset + tl.arange(0, QUERIES)
    columns = tl.arange(0, PAD)
    is_query = (rows < length)[:, None] & (columns < DIM)[None, :]
    place = ((start + rows).to(tl.int64)[:, None] * HEADS + head) * DIM + columns[None, :]
    query = tl.load(q + place, mask=is_query, other=0.0)
    position = before + rows
    last = before + tl.minimum(offset + QUERIES, length)
    first = tl.maximum(before + offset - WINDOW + 1, 0) // TILE * TILE if WINDOW else 0
    if EARLIER:
        first = num_earlier
    clear = first if WINDOW else (before + offset + 1) // TILE * TILE

    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, PAD], tl.float32)
    ours = tables + chunk.to(tl.int64) * table_width
    if EARLIER:  # as if they had been one key, whose value is their weighted sum
        peak = tl.load(earlier_total + head * filled + rows, mask=rows < length, other=0.0) * LOG2_E
        total = tl.full([QUERIES], 1.0, tl.float32)
        place_of_earlier = (rows.to(tl.int64)[:, None] * HEADS + head) * DIM + columns[None, :]
        mixed = tl.load(earlier + place_of_earlier, mask=is_query, other=0.0).to(tl.float32)
    if not WINDOW:
        peak, total, mixed = _swept(
            peak, total, mixed, query, position, first, clear, keys, values, key_scales, value_scales, ours, kv_head,
            scale, KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, MASKED=False,
        )  # fmt: skip
    peak, total, mixed = _swept(
        peak, total, mixed, query, position, clear, last, keys, values, key_scales, value_scales, ours, kv_head, scale,
        KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, MASKED=True,
    )  # fmt: skip
    if SINKS:
        total += tl.exp2(tl.load(sinks + head) * LOG2_E - peak)
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # rows past the chunk's end may see nothing
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=is_query)


class QueryTiles(NamedTuple):
    """Of the queries of chunks: a chunk and an offset in it for each."""

    chunks: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which chunks are single queries, the tiles of those that are longer, and what the library does."""

    singles: Singles
    tiles: QueryTiles | None = None
    whole: tuple[dense.Whole, ...] = ()
    behind: tuple[tuple[dense.Earlier, QueryTiles], ...] = ()
    """Long chunks, each with tiles of its own."""


def _plan_on_device(layout: BatchLayout, queries: int, num_tokens: int) -> AttentionPlan:
    """As many tiles as there could be; those past the last belong to chunk -1. Every chunk may be a single query."""
    lengths = layout.query_starts.diff()
    num_tiles = torch.where(lengths > 1, (lengths + queries - 1) // queries, 0)
    ends = num_tiles.cumsum(0)
    places = torch.arange(num_tokens // queries + len(lengths), device=lengths.device)
    owners = torch.searchsorted(ends, places, right=True)
    is_there = owners < len(lengths)
    bounded = owners.clamp(max=len(lengths) - 1)
    offsets = torch.where(is_there, (places - (ends - num_tiles)[bounded]) * queries, 0)
    chunks = torch.where(is_there, owners, -1)
    tiles = QueryTiles(chunks.int().flip(0), offsets.int().flip(0))
    return AttentionPlan(Singles(len(lengths), is_checked=True), tiles)


def plan_of(
    layout: BatchLayout,
    queries: int,
    block_size: int,
    *,
    is_plain: bool = False,
    behind_of: GQA | None = None,
    width: int = 0,
) -> AttentionPlan:
    """`width` is that of all chunks, if they have a common one. Keys before long chunks are the library's if `behind_of` says
    whose they are."""
    if width:
        return AttentionPlan(Singles(len(layout.lengths), width=width))
    single = [chunk for chunk, length in enumerate(layout.lengths) if length == 1]
    if len(single) == len(layout.lengths):
        return AttentionPlan(Singles(len(single)))
    numbers = range(len(layout.lengths))
    wholes = [
        chunk for chunk in numbers if is_plain and layout.lengths[chunk] == layout.contexts[chunk] >= dense.MIN_QUERIES
    ]
    before = {chunk: dense.earlier(layout, chunk, block_size, behind_of) for chunk in numbers if behind_of is not None}
    behind = {chunk: keys for chunk, keys in before.items() if keys is not None}
    rest = [chunk for chunk in numbers if layout.lengths[chunk] > 1 and chunk not in wholes and chunk not in behind]
    parts = [rest, *([chunk] for chunk in behind)]
    tiles = [
        [(chunk, offset) for chunk in part for offset in range(0, layout.lengths[chunk], queries)] for part in parts
    ]
    for part in tiles:
        part.reverse()  # the last queries of a prompt see most keys: start the longest work first
    flat = [tile for part in tiles for tile in part]
    device = layout.block_tables.device
    packed = torch.tensor([*single, *(chunk for chunk, _ in flat), *(offset for _, offset in flat)], dtype=torch.int32)
    moved = packed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else packed
    sizes = [len(part) for part in tiles]
    decodes, *split = moved.split([len(single), *sizes, *sizes])
    ours, *others = map(QueryTiles, split[: len(tiles)], split[len(tiles) :])
    return AttentionPlan(
        Singles(len(single), decodes),
        ours,
        tuple(dense.whole(layout, chunk, block_size) for chunk in wholes),
        tuple(zip(behind.values(), others)),
    )


@attention.kernel("cuda", fits=lambda q, *rest: q.shape[0] > 0)
def paged_attention(q: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None) -> Tensor:
    config = tiles_of("attention of runs", size=q.shape[-1], value_bytes=q.element_size())
    is_plain = dense.is_dense(spec) and sinks is None and q.element_size() == 2
    is_behind = is_plain and dense.has_earlier(spec, cache.block_size)
    width = common_width(layout, spec)
    key = "triton attention", config.rows, is_plain, is_behind, width
    plan = layout.derived.get(key)
    if plan is None:
        if layout.lengths:
            size = cache.block_size
            behind_of = spec if is_behind else None
            plan = plan_of(layout, config.rows, size, is_plain=is_plain, behind_of=behind_of, width=width)
        else:
            plan = _plan_on_device(layout, config.rows, q.shape[0])
        layout.derived[key] = plan
    if plan.whole and plan.whole[0].length == len(q):
        return dense.attend_whole(q, cache, spec, plan.whole[0])
    out = torch.empty_like(q)
    if plan.singles.num_chunks:
        attend_singles(q, cache, layout, spec, sinks, plan.singles, out)
    for part in plan.whole:
        out[part.begin : part.begin + part.length] = dense.attend_whole(q, cache, spec, part)
    attend_runs(q, cache, layout, spec, sinks, plan.tiles, out, config)
    for keys, tiles in plan.behind:
        seen = dense.attend_earlier(q, cache, spec, keys)
        attend_runs(q, cache, layout, spec, sinks, tiles, out, config, keys.num_keys, seen)
    if is_behind and IS_ASKING.get():
        attend_runs(q, cache, layout, spec, sinks, plan.tiles, out, config, 0, (q, q.float()))
    return out


def attend_runs(
    q: Tensor,
    cache: AnyCache,
    layout: BatchLayout,
    spec: GQA,
    sinks: Tensor | None,
    tiles: QueryTiles | None,
    out: Tensor,
    config: TileConfig,
    num_earlier: int = 0,
    seen: tuple[Tensor, Tensor] | None = None,
) -> None:
    """`seen` is what the chunk's queries have seen of so many earlier keys, and the weights of those."""
    if tiles is None or not len(tiles.chunks):
        return
    found, total = (q, q) if seen is None else seen
    _runs[(spec.num_heads, len(tiles.chunks))](
        q,
        cache.keys,
        cache.values,
        *scales_of(cache),
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        tiles.chunks,
        tiles.offsets,
        q if sinks is None else sinks,
        out,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        found,
        total,
        num_earlier,
        total.shape[-1],
        **shape(cache, spec, sinks),
        EARLIER=seen is not None,
        QUERIES=config.rows,
        TILE=config.block,
        **chained(),
        num_warps=config.warps,
        num_stages=config.stages,
    )
