"""Attention of runs of queries over the paged cache, tile by tile. Single queries among them are `decode`'s.

Nothing the size of queries x keys is ever stored.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import attention, read_blocks
from penstock.runtime.ops.layout import AnyCache, BatchLayout
from penstock.runtime.ops.triton.decode import Singles, attend_singles, common_width
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of
from penstock.runtime.ops.triton.paged import LOG2_E, capped, scales_of, shape, slots_of

MIN_DENSE_QUERIES = 1024
DENSE_LENGTHS = 512
"""Whole prompts are filled up to a multiple of this: the library prepares itself for each new length, which takes a while."""
DENSE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The library's ways, the fastest first (4,000 queries of 32 heads on an H200: 296 us, then 551)."""


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
    do_not_specialize=["table_width"],
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "tile_chunks", "tile_offsets"],
)
def _runs(
    q, keys, values, key_scales, value_scales, tables, starts, contexts, tile_chunks, tile_offsets, sinks,
    out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    LOG2_E: tl.constexpr, SINKS: tl.constexpr, SCALES: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """A tile of one chunk's queries, one head, over all keys the tile sees.

    keys   first ......... clear .... last
           [ every query sees | masked ]
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
    clear = first if WINDOW else (before + offset + 1) // TILE * TILE

    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, PAD], tl.float32)
    ours = tables + chunk.to(tl.int64) * table_width
    if not WINDOW:
        peak, total, mixed = _swept(
            peak, total, mixed, query, position, 0, clear, keys, values, key_scales, value_scales, ours, kv_head, scale,
            KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, MASKED=False,
        )  # fmt: skip
    peak, total, mixed = _swept(
        peak, total, mixed, query, position, clear, last, keys, values, key_scales, value_scales, ours, kv_head, scale,
        KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, MASKED=True,
    )  # fmt: skip
    if SINKS:
        total += tl.exp2(tl.load(sinks + head) * LOG2_E - peak)
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # rows past the chunk's end may see nothing
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=is_query)


@dataclass(frozen=True, slots=True)
class Whole:
    """A long prompt computed in one piece: the library's dense attention is faster for it."""

    begin: int
    length: int
    filled_length: int
    blocks: Tensor
    """Its own, and its first again as often as it takes to fill it up."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which chunks are single queries, and the tiles of those that are longer."""

    singles: Singles
    tile_chunks: Tensor | None
    tile_offsets: Tensor | None
    whole: tuple["Whole", ...] = ()


def _plan_on_device(layout: BatchLayout, queries: int, num_tokens: int) -> AttentionPlan:
    """As many tiles as there could be; those past the last belong to chunk -1. Every chunk may be a single query."""
    lengths = layout.query_starts.diff()
    num_tiles = torch.where(lengths > 1, (lengths + queries - 1) // queries, 0)
    ends = num_tiles.cumsum(0)
    tiles = torch.arange(num_tokens // queries + len(lengths), device=lengths.device)
    owners = torch.searchsorted(ends, tiles, right=True)
    is_there = owners < len(lengths)
    bounded = owners.clamp(max=len(lengths) - 1)
    offsets = torch.where(is_there, (tiles - (ends - num_tiles)[bounded]) * queries, 0)
    chunks = torch.where(is_there, owners, -1)
    return AttentionPlan(Singles(len(lengths), is_checked=True), chunks.int().flip(0), offsets.int().flip(0))


def plan_of(
    layout: BatchLayout, queries: int, block_size: int, *, is_plain: bool = False, width: int = 0
) -> AttentionPlan:
    """`width` is that of all chunks, if they have a common one."""
    if width:
        return AttentionPlan(Singles(len(layout.lengths), width=width), None, None)
    single = [chunk for chunk, length in enumerate(layout.lengths) if length == 1]
    if len(single) == len(layout.lengths):
        return AttentionPlan(Singles(len(single)), None, None)
    whole = {
        chunk
        for chunk, (length, context) in enumerate(zip(layout.lengths, layout.contexts))
        if is_plain and length == context >= MIN_DENSE_QUERIES
    }
    tiles = [
        (chunk, offset)
        for chunk, length in enumerate(layout.lengths)
        if length > 1 and chunk not in whole
        for offset in range(0, length, queries)
    ]
    tiles.reverse()  # the last queries of a prompt see most keys: start the longest work first
    device = layout.block_tables.device
    numbers = torch.tensor(
        [single + [chunk for chunk, _ in tiles] + [offset for _, offset in tiles]], dtype=torch.int32
    )
    moved = numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers
    decodes, chunks, offsets = moved[0].split([len(single), len(tiles), len(tiles)])
    return AttentionPlan(
        Singles(len(single), decodes), chunks, offsets, tuple(_whole(layout, chunk, block_size) for chunk in whole)
    )


def _whole(layout: BatchLayout, chunk: int, block_size: int) -> Whole:
    length = layout.lengths[chunk]
    filled_length = -(-length // DENSE_LENGTHS) * DENSE_LENGTHS
    numbers = torch.arange(-(-filled_length // block_size), device=layout.block_tables.device)
    blocks = layout.block_tables[chunk, numbers.where(numbers * block_size < length, 0)]
    return Whole(sum(layout.lengths[:chunk]), length, filled_length, blocks)


def _is_dense(spec: GQA) -> bool:
    """The library's attention computes this kind."""
    return spec.window is None and spec.logit_softcap is None


def prepare_dense(spec: GQA, most_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
    """Have the library prepare itself for whole prompts of every length up to so many tokens: a second, then 60 ms each."""
    if not _is_dense(spec) or spec.sinks or dtype.itemsize != 2:
        return
    for length in range(-(-MIN_DENSE_QUERIES // DENSE_LENGTHS) * DENSE_LENGTHS, most_tokens + 1, DENSE_LENGTHS):
        sizes = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        queries, keys, values = (
            torch.zeros((length, size, spec.head_dim), dtype=dtype, device=device) for size in sizes
        )
        _attend_dense(queries, keys, values, spec)


@attention.kernel("cuda", fits=lambda q, *rest: q.shape[0] > 0)
def paged_attention(q: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None) -> Tensor:
    config = tiles_of("attention of runs", size=q.shape[-1], value_bytes=q.element_size())
    is_plain = _is_dense(spec) and sinks is None and q.element_size() == 2
    width = common_width(layout, spec)
    plan = layout.derived.get(("triton attention", config.rows, is_plain, width))
    if plan is None:
        if layout.lengths:
            plan = plan_of(layout, config.rows, cache.block_size, is_plain=is_plain, width=width)
        else:
            plan = _plan_on_device(layout, config.rows, q.shape[0])
        layout.derived["triton attention", config.rows, is_plain, width] = plan
    if plan.whole and plan.whole[0].length == len(q):
        return _attend_whole(q, cache, spec, plan.whole[0])
    out = torch.empty_like(q)
    if plan.singles.num_chunks:
        attend_singles(q, cache, layout, spec, sinks, plan.singles, out)
    for whole in plan.whole:
        out[whole.begin : whole.begin + whole.length] = _attend_whole(q, cache, spec, whole)
    attend_runs(q, cache, layout, spec, sinks, plan, out, config)
    return out


def attend_runs(
    q: Tensor,
    cache: AnyCache,
    layout: BatchLayout,
    spec: GQA,
    sinks: Tensor | None,
    plan: AttentionPlan,
    out: Tensor,
    config: TileConfig,
) -> None:
    if plan.tile_chunks is None or plan.tile_offsets is None or not len(plan.tile_chunks):
        return
    _runs[(spec.num_heads, len(plan.tile_chunks))](
        q,
        cache.keys,
        cache.values,
        *scales_of(cache),
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        plan.tile_chunks,
        plan.tile_offsets,
        q if sinks is None else sinks,
        out,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        **shape(cache, spec, sinks),
        QUERIES=config.rows,
        TILE=config.block,
        **chained(),
        num_warps=config.warps,
        num_stages=config.stages,
    )


def _attend_whole(q: Tensor, cache: AnyCache, spec: GQA, whole: Whole) -> Tensor:
    """What it is filled up with stands behind every real query, which so never sees it, and must be finite."""
    ours = slice(whole.begin, whole.begin + whole.length)
    read = read_blocks(cache, whole.blocks)
    keys, values = (part.to(q.dtype).flatten(0, 1)[: whole.filled_length] for part in read)
    queries = q[ours]
    if whole.length < whole.filled_length:
        keys[whole.length :] = 0.0
        values[whole.length :] = 0.0
        queries = q.new_empty((whole.filled_length, *q.shape[1:]))
        queries[: whole.length] = q[ours]
    return _attend_dense(queries, keys, values, spec)[: whole.length]


def _attend_dense(queries: Tensor, keys: Tensor, values: Tensor, spec: GQA) -> Tensor:
    queries, keys, values = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    with sdpa_kernel(DENSE, set_priority=True):
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=spec.scale, enable_gqa=True
        )
    return attended[0].transpose(0, 1)
