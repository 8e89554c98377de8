"""Paged attention: single queries with the keys split over programs, runs of queries tile by tile.

Scores are kept in base 2 (scale carries log2 e). Nothing the size of queries x keys is ever stored.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.models.spec import GQA
from penstock.ops.attention import attention
from penstock.ops.layout import LayerCache, Layout

LOG2_E = 1.4426950408889634
PROGRAMS = 264
"""Programs that keep the whole chip busy: two on each multiprocessor."""
MAX_SPLITS = 32


@triton.jit
def _capped(scores, CAP: tl.constexpr, LOG2_E: tl.constexpr):
    """Scores in base 2, bent below the cap where there is one."""
    if CAP > 0:
        bent = scores / (CAP * LOG2_E)
        scores = (2.0 * tl.sigmoid(2.0 * bent) - 1.0) * (CAP * LOG2_E)
    return scores


@triton.jit
def _slots(tables, table_start, positions, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(tables + table_start + positions // BLOCK_SIZE, mask=inside, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def _decode(
    q, keys, values, tables, starts, contexts, members, sinks, out, partial, peaks, sums, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SINKS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """One sequence's query, the heads that share a kv head, one of SPLITS runs of keys."""
    member = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    chunk = tl.load(members + member) if LISTED else member
    token = tl.load(starts + chunk).to(tl.int64)
    context = tl.load(contexts + chunk)
    first = tl.maximum(context - WINDOW, 0) if WINDOW else 0
    origin = first // TILE * TILE
    span = tl.cdiv(tl.cdiv(context - origin, TILE), SPLITS) * TILE
    low = origin + split * span
    high = tl.minimum(low + span, context)

    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PAD)
    head = kv_head * GROUP + rows
    is_query = (rows < GROUP)[:, None] & (columns < DIM)[None, :]
    query = tl.load(q + (token * HEADS + head[:, None]) * DIM + columns[None, :], mask=is_query, other=0.0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(low, high, TILE):
        positions = begin + tl.arange(0, TILE)
        inside = (positions < high) & (positions >= first)
        slot = _slots(tables, chunk.to(tl.int64) * table_width, positions, inside, BLOCK_SIZE)
        place = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns[None, :]
        is_key = inside[:, None] & (columns < DIM)[None, :]
        key = tl.load(keys + place, mask=is_key, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], _capped(scores, CAP, LOG2_E), float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        value = tl.load(values + place, mask=is_key, other=0.0).to(query.dtype)
        total = total * fade + tl.sum(weights, axis=1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(query.dtype), value, input_precision="ieee")
        peak = higher
    if SPLITS == 1:
        if SINKS:
            total += tl.exp2(tl.load(sinks + head, mask=rows < GROUP, other=0.0) * LOG2_E - peak)
        mixed = mixed / total[:, None]
        target = out + (token * HEADS + head[:, None]) * DIM + columns[None, :]
        tl.store(target, mixed.to(out.dtype.element_ty), mask=is_query)
    else:
        place = (member.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(peaks + place, peak, mask=rows < GROUP)
        tl.store(sums + place, total, mask=rows < GROUP)
        tl.store(partial + place[:, None] * DIM + columns[None, :], mixed, mask=is_query)


@triton.jit
def _join(
    partial, peaks, sums, starts, members, sinks, out,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    LOG2_E: tl.constexpr, SINKS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Weighs the runs of keys of one query head against each other."""
    member = tl.program_id(0)
    head = tl.program_id(1)
    chunk = tl.load(members + member) if LISTED else member
    token = tl.load(starts + chunk).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    columns = tl.arange(0, PAD)
    place = (member.to(tl.int64) * HEADS + head) * SPLITS + splits
    peak = tl.load(peaks + place)
    highest = tl.max(peak, axis=0)
    share = tl.exp2(peak - highest)
    total = tl.sum(share * tl.load(sums + place), axis=0)
    if SINKS:
        total += tl.exp2(tl.load(sinks + head) * LOG2_E - highest)
    parts = tl.load(partial + place[:, None] * DIM + columns[None, :], mask=(columns < DIM)[None, :], other=0.0)
    mixed = tl.sum(parts * share[:, None], axis=0) / total
    tl.store(out + (token * HEADS + head) * DIM + columns, mixed.to(out.dtype.element_ty), mask=columns < DIM)


@triton.jit
def _runs(
    q, keys, values, tables, starts, contexts, tile_chunks, tile_offsets, sinks, out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    LOG2_E: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """A tile of one chunk's queries, one head, over all keys the tile sees.

    keys   first ......... clear .... last
           [ every query sees | masked ]
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    chunk = tl.load(tile_chunks + tile)
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
    table_start = chunk.to(tl.int64) * table_width
    for begin in range(first, last, TILE):
        keys_at = begin + tl.arange(0, TILE)
        inside = keys_at < last
        slot = _slots(tables, table_start, keys_at, inside, BLOCK_SIZE)
        key_place = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns[None, :]
        is_key = inside[:, None] & (columns < DIM)[None, :]
        key = tl.load(keys + key_place, mask=is_key, other=0.0).to(query.dtype)
        scores = _capped(tl.dot(query, tl.trans(key), input_precision="ieee") * scale, CAP, LOG2_E)
        if begin >= clear:
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
        value = tl.load(values + key_place, mask=is_key, other=0.0).to(query.dtype)
        total = total * fade + tl.sum(weights, axis=1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(query.dtype), value, input_precision="ieee")
        peak = higher
    if SINKS:
        total += tl.exp2(tl.load(sinks + head) * LOG2_E - peak)
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # rows past the chunk's end may see nothing
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=is_query)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which chunks are single queries, and the tiles of those that are longer."""

    num_decodes: int
    decodes: Tensor | None
    """Their chunk numbers; None when every chunk is one."""
    tile_chunks: Tensor | None
    tile_offsets: Tensor | None


def _plan(layout: Layout, queries: int) -> Plan:
    single = [chunk for chunk, length in enumerate(layout.lengths) if length == 1]
    if len(single) == len(layout.lengths):
        return Plan(len(single), None, None, None)
    tiles = [
        (chunk, offset)
        for chunk, length in enumerate(layout.lengths)
        if length > 1
        for offset in range(0, length, queries)
    ]
    tiles.reverse()  # the last queries of a prompt see most keys: start the longest work first
    device = layout.block_tables.device
    numbers = torch.tensor(
        [single + [chunk for chunk, _ in tiles] + [offset for _, offset in tiles]], dtype=torch.int32
    )
    moved = numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers
    decodes, chunks, offsets = moved[0].split([len(single), len(tiles), len(tiles)])
    return Plan(len(single), decodes, chunks, offsets)


@attention.kernel("cuda", fits=lambda q, *rest: q.shape[0] > 0)
def paged_attention(q: Tensor, cache: LayerCache, layout: Layout, spec: GQA, sinks: Tensor | None) -> Tensor:
    queries = 128 if spec.head_dim <= 128 and max(layout.lengths) > 64 else 64 if spec.head_dim <= 128 else 32
    plan = layout.derived.get(("triton attention", queries))
    if plan is None:
        plan = layout.derived["triton attention", queries] = _plan(layout, queries)
    out = torch.empty_like(q)
    if plan.num_decodes:
        _attend_singles(q, cache, layout, spec, sinks, plan, out)
    if plan.tile_chunks is not None and plan.tile_offsets is not None:
        _runs[(spec.num_heads, len(plan.tile_chunks))](
            q,
            cache.keys,
            cache.values,
            layout.block_tables,
            layout.query_starts,
            layout.context_lengths,
            plan.tile_chunks,
            plan.tile_offsets,
            q if sinks is None else sinks,
            out,
            spec.scale * LOG2_E,
            layout.block_tables.stride(0),
            **_shape(cache, spec, sinks),
            QUERIES=queries,
            TILE=64 if spec.head_dim <= 128 else 32,
            WINDOW=spec.window or 0,
            CAP=spec.logit_softcap or 0.0,
            num_warps=8 if queries == 128 else 4,
            num_stages=3 if q.element_size() == 2 else 1,
        )
    return out


def _attend_singles(
    q: Tensor, cache: LayerCache, layout: Layout, spec: GQA, sinks: Tensor | None, plan: Plan, out: Tensor
) -> None:
    group = spec.num_heads // spec.num_kv_heads
    num_programs = plan.num_decodes * spec.num_kv_heads
    splits = min(triton.next_power_of_2(max(PROGRAMS // num_programs, 1)), MAX_SPLITS)
    shape = _shape(cache, spec, sinks)
    members = layout.query_starts if plan.decodes is None else plan.decodes
    partial = torch.empty(
        (plan.num_decodes, spec.num_heads, splits, spec.head_dim if splits > 1 else 0), device=q.device
    )
    peaks, sums = torch.empty((2, plan.num_decodes, spec.num_heads, splits), device=q.device)
    is_listed = plan.decodes is not None
    any_sinks = q if sinks is None else sinks
    _decode[(plan.num_decodes, spec.num_kv_heads, splits)](
        q,
        cache.keys,
        cache.values,
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        members,
        any_sinks,
        out,
        partial,
        peaks,
        sums,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        **shape,
        GROUP=group,
        ROWS=max(triton.next_power_of_2(group), 16),
        TILE=64 if spec.head_dim <= 128 else 32,
        SPLITS=splits,
        WINDOW=spec.window or 0,
        CAP=spec.logit_softcap or 0.0,
        LISTED=is_listed,
        num_warps=4,
        num_stages=3 if q.element_size() == 2 else 1,
    )
    if splits > 1:
        del shape["KV_HEADS"], shape["BLOCK_SIZE"]
        _join[(plan.num_decodes, spec.num_heads)](
            partial, peaks, sums, layout.query_starts, members, any_sinks, out,
            **shape, SPLITS=splits, LISTED=is_listed, num_warps=2,
        )  # fmt: skip


def _shape(cache: LayerCache, spec: GQA, sinks: Tensor | None) -> dict[str, int | float | bool]:
    return {
        "HEADS": spec.num_heads,
        "KV_HEADS": spec.num_kv_heads,
        "DIM": spec.head_dim,
        "PAD": triton.next_power_of_2(spec.head_dim),
        "BLOCK_SIZE": cache.block_size,
        "LOG2_E": LOG2_E,
        "SINKS": sinks is not None,
    }
