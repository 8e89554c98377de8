"""Paged attention: single queries with the keys split over programs, runs of queries tile by tile.

Scores are kept in base 2 (scale carries log2 e). Nothing the size of queries x keys is ever stored.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from penstock.models.spec import GQA
from penstock.ops.attention import attention, read_blocks
from penstock.ops.cached_attention import cached_attention
from penstock.ops.kv_write import HeadNorms
from penstock.ops.layout import AnyCache, LayerCache, Layout, ScaledCache
from penstock.ops.rope import Angles

LOG2_E = 1.4426950408889634
PROGRAMS = 264
"""Programs that keep the whole chip busy: two on each multiprocessor."""
MAX_SPLITS = 32
MAX_PLACING_PROGRAMS = 32
MIN_DENSE_QUERIES = 1024
DECODE_SHAPES = {32: (32, 2, 4), 128: (64, 8, 2), 512: (128, 4, 3), 1024: (32, 2, 2)}
"""Keys a tile, warps and stages by the most programs they are best for, measured on an H200."""


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
def _turned(
    source, columns, inside, weight, cosine, sine, eps, kind: tl.constexpr,
    DIM: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Rows of heads at `source`, normed and rotated. A column's partner in rotation lies HALF away."""
    numbers = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
    if NORMS:
        scale = tl.rsqrt(tl.sum(numbers * numbers, axis=1) / DIM + eps)[:, None]
        numbers = (numbers * scale * tl.load(weight + columns, mask=columns < DIM, other=0.0)).to(kind).to(tl.float32)
    if TURNS:
        is_first = columns < HALF
        partner = tl.where(is_first, columns + HALF, columns - HALF)
        turns = columns < 2 * HALF
        others = tl.load(source + partner, mask=inside & turns, other=0.0).to(tl.float32)
        if NORMS:
            others = (others * scale * tl.load(weight + partner, mask=turns, other=0.0)).to(kind).to(tl.float32)
        angle = tl.where(is_first, columns, columns - HALF)
        cos = tl.load(cosine + angle, mask=turns, other=1.0)
        sin = tl.load(sine + angle, mask=turns, other=0.0)
        numbers = numbers * cos + tl.where(is_first, -others, others) * sin
    return numbers.to(kind)


@triton.jit(do_not_specialize=["table_width"])
def _decode(
    q, cosine, sine, q_weight, k_weight, eps, keys, values, key_scales, value_scales,
    tables, starts, contexts, members, sinks, out, partial, peaks, sums, counters, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SINKS: tl.constexpr,
    LISTED: tl.constexpr, PLACES: tl.constexpr, NORMS: tl.constexpr, TURNS: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    """One sequence's query, the heads that share a kv head, one of SPLITS runs of keys.

    With PLACES, `q` is the joined q, k, v as projected: heads are normed and rotated here, and the first run takes the new
    key and value from registers and lays them down in the cache. The run that ends last joins all of them.
    """
    member = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    chunk = tl.load(members + member) if LISTED else member
    token = tl.load(starts + chunk).to(tl.int64)
    context = tl.load(contexts + chunk)
    first = tl.maximum(context - WINDOW, 0) if WINDOW else 0
    origin = first // TILE * TILE
    end = context - 1 if PLACES else context
    span = tl.cdiv(tl.cdiv(end - origin, TILE), SPLITS) * TILE
    low = origin + split * span
    high = tl.minimum(low + span, end)
    table_start = chunk.to(tl.int64) * table_width

    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PAD)[None, :]
    head = kv_head * GROUP + rows
    is_query = (rows < GROUP)[:, None] & (columns < DIM)
    kind: tl.constexpr = out.dtype.element_ty
    if PLACES:
        source = q + token * (HEADS + 2 * KV_HEADS) * DIM
        cos, sin = cosine + token * HALF, sine + token * HALF
        query = _turned(
            source + head[:, None] * DIM, columns, is_query, q_weight, cos, sin, eps, kind, DIM, HALF, NORMS, TURNS
        )
    else:
        query = tl.load(q + (token * HEADS + head[:, None]) * DIM + columns, mask=is_query, other=0.0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(low, high, TILE):
        positions = begin + tl.arange(0, TILE)
        inside = (positions < high) & (positions >= first)
        slot = _slots(tables, table_start, positions, inside, BLOCK_SIZE)
        place = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns
        is_key = inside[:, None] & (columns < DIM)
        key = tl.load(keys + place, mask=is_key, other=0.0).to(query.dtype)
        value = tl.load(values + place, mask=is_key, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SCALES:
            scores *= tl.load(key_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        scores = tl.where(inside[None, :], _capped(scores, CAP, LOG2_E), float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(weights, axis=1)
        if SCALES:
            weights *= tl.load(value_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        mixed = mixed * fade[:, None] + tl.dot(weights.to(query.dtype), value, input_precision="ieee")
        peak = higher
    if PLACES and split == 0:
        ours = HEADS + kv_head + rows[:, None] * 0
        key = _turned(
            source + ours * DIM, columns, columns < DIM, k_weight, cos, sin, eps, kind, DIM, HALF, NORMS, TURNS
        )
        value = tl.load(source + (ours + KV_HEADS) * DIM + columns, mask=columns < DIM, other=0.0)
        block = tl.load(tables + table_start + end // BLOCK_SIZE).to(tl.int64)
        place = ((block * BLOCK_SIZE + end % BLOCK_SIZE) * KV_HEADS + kv_head) * DIM + columns + rows[:, None] * 0
        tl.store(keys + place, key.to(keys.dtype.element_ty), mask=(rows == 0)[:, None] & (columns < DIM))
        tl.store(values + place, value.to(values.dtype.element_ty), mask=(rows == 0)[:, None] & (columns < DIM))
        key = key.to(keys.dtype.element_ty).to(kind)  # as the steps after this one will read them
        value = value.to(values.dtype.element_ty).to(kind)
        score = _capped(tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale, CAP, LOG2_E)
        higher = tl.maximum(peak, score)
        weight = tl.exp2(score - higher)
        fade = tl.exp2(peak - higher)
        total = total * fade + weight
        mixed = mixed * fade[:, None] + weight[:, None] * value.to(tl.float32)
        peak = higher
    target = out + (token * HEADS + kv_head * GROUP) * DIM + columns
    if SPLITS == 1:
        if SINKS:
            total += tl.exp2(tl.load(sinks + head, mask=rows < GROUP, other=0.0) * LOG2_E - peak)
        tl.store(target + rows[:, None] * DIM, (mixed / total[:, None]).to(kind), mask=is_query)
    else:
        base = (member.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(peaks + base, peak, mask=rows < GROUP)
        tl.store(sums + base, total, mask=rows < GROUP)
        tl.store(partial + base[:, None] * DIM + columns, mixed, mask=is_query)
        tl.debug_barrier()
        counter = counters + member * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(counter, 0)
            splits = tl.arange(0, SPLITS)
            for number in range(GROUP):
                base_of_head = (member.to(tl.int64) * HEADS + kv_head * GROUP + number) * SPLITS + splits
                each = tl.load(peaks + base_of_head, cache_modifier=".cg")
                highest = tl.max(each, axis=0)
                share = tl.exp2(each - highest)
                sum_of_all = tl.sum(share * tl.load(sums + base_of_head, cache_modifier=".cg"), axis=0)
                if SINKS:
                    sum_of_all += tl.exp2(tl.load(sinks + kv_head * GROUP + number) * LOG2_E - highest)
                parts = tl.load(
                    partial + base_of_head[:, None] * DIM + columns, mask=columns < DIM, other=0.0, cache_modifier=".cg"
                )
                joined = tl.sum(parts * share[:, None], axis=0)[None, :] / sum_of_all
                tl.store(target + number * DIM, joined.to(kind), mask=columns < DIM)


@triton.jit(do_not_specialize=["table_width"])
def _runs(
    q, keys, values, key_scales, value_scales, tables, starts, contexts, tile_chunks, tile_offsets, sinks,
    out, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    LOG2_E: tl.constexpr, SINKS: tl.constexpr, SCALES: tl.constexpr,
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
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SCALES:
            scores *= tl.load(key_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        scores = _capped(scores, CAP, LOG2_E)
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
        if SCALES:
            weights *= tl.load(value_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
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
    whole: tuple[int, ...] = ()
    """Long prompts computed in one piece: the library's dense attention is faster for them."""


def _plan(layout: Layout, queries: int, *, is_plain: bool = False) -> Plan:
    single = [chunk for chunk, length in enumerate(layout.lengths) if length == 1]
    if len(single) == len(layout.lengths):
        return Plan(len(single), None, None, None)
    whole = tuple(
        chunk
        for chunk, (length, context) in enumerate(zip(layout.lengths, layout.contexts))
        if is_plain and length == context >= MIN_DENSE_QUERIES
    )
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
    return Plan(len(single), decodes, chunks, offsets, whole)


@attention.kernel("cuda", fits=lambda q, *rest: q.shape[0] > 0)
def paged_attention(q: Tensor, cache: AnyCache, layout: Layout, spec: GQA, sinks: Tensor | None) -> Tensor:
    queries = 128 if spec.head_dim <= 128 and max(layout.lengths) > 64 else 64 if spec.head_dim <= 128 else 32
    is_plain = spec.window is None and spec.logit_softcap is None and sinks is None and q.element_size() == 2
    plan = layout.derived.get(("triton attention", queries, is_plain))
    if plan is None:
        plan = layout.derived["triton attention", queries, is_plain] = _plan(layout, queries, is_plain=is_plain)
    out = torch.empty_like(q)
    if plan.num_decodes:
        _attend_singles(q, cache, layout, spec, sinks, plan, out)
    for chunk in plan.whole:
        _attend_whole(q, cache, layout, spec, chunk, out)
    if plan.tile_chunks is not None and plan.tile_offsets is not None and len(plan.tile_chunks):
        _runs[(spec.num_heads, len(plan.tile_chunks))](
            q,
            cache.keys,
            cache.values,
            *_scales(cache),
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
            TILE=128 if queries == 128 and q.element_size() == 2 else 64 if spec.head_dim <= 128 else 32,
            WINDOW=spec.window or 0,
            CAP=spec.logit_softcap or 0.0,
            num_warps=8 if queries == 128 else 4,
            num_stages=2 if q.element_size() == 2 else 1,
        )
    return out


def _attend_whole(q: Tensor, cache: AnyCache, layout: Layout, spec: GQA, chunk: int, out: Tensor) -> None:
    begin, length = sum(layout.lengths[:chunk]), layout.lengths[chunk]
    blocks = layout.block_tables[chunk, : -(-length // cache.block_size)]
    read = (part.to(q.dtype).flatten(0, 1)[:length] for part in read_blocks(cache, blocks))
    keys, values = (part.transpose(0, 1)[None] for part in read)
    queries = q[begin : begin + length].transpose(0, 1)[None]
    attended = functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=spec.scale, enable_gqa=True
    )
    out[begin : begin + length] = attended[0].transpose(0, 1)


@cached_attention.kernel("cuda", fits=lambda *arguments: _places_singles(*arguments))
def placed_attention(
    qkv: Tensor,
    spec: GQA,
    norms: HeadNorms | None,
    angles: Angles | None,
    cache: AnyCache,
    layout: Layout,
    sinks: Tensor | None,
) -> Tensor:
    """Decodes alone: keys and values are laid down by the launch that attends."""
    out = torch.empty((qkv.shape[0], spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device)
    _attend_singles(qkv, cache, layout, spec, sinks, _plan(layout, 0), out, Placing(norms, angles))
    return out


def _places_singles(
    qkv: Tensor,
    spec: GQA,
    norms: HeadNorms | None,
    angles: Angles | None,
    cache: AnyCache,
    layout: Layout,
    sinks: Tensor | None,
) -> bool:
    """Worth it while launches cost more than bytes: with many sequences the longer program hides less latency."""
    is_by_head = norms is None or norms.q.shape[0] == spec.head_dim
    is_small = len(layout.lengths) * spec.num_kv_heads <= MAX_PLACING_PROGRAMS
    return (
        isinstance(cache, LayerCache) and is_by_head and is_small and qkv.is_contiguous() and set(layout.lengths) == {1}
    )


class Placing(NamedTuple):
    """What is done to heads before they attend."""

    norms: HeadNorms | None
    angles: Angles | None


def _attend_singles(
    q: Tensor,
    cache: AnyCache,
    layout: Layout,
    spec: GQA,
    sinks: Tensor | None,
    plan: Plan,
    out: Tensor,
    placing: Placing | None = None,
) -> None:
    group = spec.num_heads // spec.num_kv_heads
    num_programs = plan.num_decodes * spec.num_kv_heads
    splits = min(triton.next_power_of_2(max(PROGRAMS // num_programs, 1)), MAX_SPLITS)
    counters = layout.derived.get("decode counters")
    if counters is None:
        counters = torch.zeros((plan.num_decodes, spec.num_kv_heads), dtype=torch.int32, device=q.device)
        layout.derived["decode counters"] = counters
    tile, warps, stages = _decode_shape(num_programs, spec.head_dim, q.element_size())
    partial = torch.empty(
        (plan.num_decodes, spec.num_heads, splits, spec.head_dim if splits > 1 else 0), device=q.device
    )
    peaks, sums = torch.empty((2, plan.num_decodes, spec.num_heads, splits), device=q.device)
    norms, angles = placing or Placing(None, None)
    _decode[(plan.num_decodes, spec.num_kv_heads, splits)](
        q,
        q if angles is None else angles.cosine,
        q if angles is None else angles.sine,
        q if norms is None else norms.q,
        q if norms is None else norms.k,
        0.0 if norms is None else norms.eps,
        cache.keys,
        cache.values,
        *_scales(cache),
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        layout.query_starts if plan.decodes is None else plan.decodes,
        q if sinks is None else sinks,
        out,
        partial,
        peaks,
        sums,
        counters,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        **_shape(cache, spec, sinks),
        GROUP=group,
        ROWS=max(triton.next_power_of_2(group), 16),
        HALF=0 if angles is None else angles.cosine.shape[-1],
        TILE=tile,
        SPLITS=splits,
        WINDOW=spec.window or 0,
        CAP=spec.logit_softcap or 0.0,
        LISTED=plan.decodes is not None,
        PLACES=placing is not None,
        NORMS=norms is not None,
        TURNS=angles is not None,
        num_warps=warps,
        num_stages=stages,
    )


def _decode_shape(num_programs: int, head_dim: int, bytes_per_number: int) -> tuple[int, int, int]:
    if bytes_per_number > 2 or head_dim > 128:
        return 32, 4, 1
    for most, shape in DECODE_SHAPES.items():
        if num_programs <= most:
            return shape
    return 128, 4, 3


def _shape(cache: AnyCache, spec: GQA, sinks: Tensor | None) -> dict[str, int | float | bool]:
    return {
        "HEADS": spec.num_heads,
        "KV_HEADS": spec.num_kv_heads,
        "DIM": spec.head_dim,
        "PAD": triton.next_power_of_2(spec.head_dim),
        "BLOCK_SIZE": cache.block_size,
        "LOG2_E": LOG2_E,
        "SINKS": sinks is not None,
        "SCALES": isinstance(cache, ScaledCache),
    }


def _scales(cache: AnyCache) -> tuple[Tensor, Tensor]:
    """A cache without scales hands over its numbers, which are then not read as scales."""
    return (cache.key_scales, cache.value_scales) if isinstance(cache, ScaledCache) else (cache.keys, cache.values)
