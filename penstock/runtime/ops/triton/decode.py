"""Attention of single queries over the paged cache, or of as many of each sequence; its keys are split over programs."""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.cached_attention import cached_attention
from penstock.runtime.ops.kv_write import HeadNorms
from penstock.runtime.ops.layout import AnyCache, BatchLayout, LayerCache
from penstock.runtime.ops.rope import Angles
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of
from penstock.runtime.ops.triton.paged import (
    LOG2_E,
    attend_own,
    capped,
    halves,
    kind_of_bytes,
    scales_of,
    shape,
    slots_of,
    turned,
)

PROGRAMS = 264
"""Programs that keep the whole chip busy: two on each multiprocessor."""
MAX_SPLITS = 32
MAX_PLACING_PROGRAMS = 32
MAX_ROWS = 64
"""Queries times heads of a kv head that a program takes at most."""


@triton.jit
def _join(
    target, partial, peaks, sums, sinks, first_head, kind: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    PAD: tl.constexpr, SPLITS: tl.constexpr, SINKS: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """What all runs of a sequence's keys gave, head by head, past the first cache: other programs wrote it."""
    columns = tl.arange(0, PAD)[None, :]
    for number in range(GROUP):
        base = (first_head + number) * SPLITS + tl.arange(0, SPLITS)
        each = tl.load(peaks + base, cache_modifier=".cg")
        highest = tl.max(each, axis=0)
        share = tl.exp2(each - highest)
        total = tl.sum(share * tl.load(sums + base, cache_modifier=".cg"), axis=0)
        if SINKS:
            total += tl.exp2(tl.load(sinks + number) * LOG2_E - highest)
        parts = tl.load(partial + base[:, None] * DIM + columns, mask=columns < DIM, other=0.0, cache_modifier=".cg")
        joined = tl.sum(parts * share[:, None], axis=0)[None, :] / total
        tl.store(target + number * DIM, joined.to(kind), mask=columns < DIM)


@entry
@triton.jit(
    do_not_specialize=["table_width", "width"],
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "places", "members", "peaks", "sums", "counters"],
)
def _decode(
    q, cosine, sine, q_weight, k_weight, eps, keys, values, key_scales, value_scales,
    tables, starts, contexts, places, members, sinks, out, partial, peaks, sums, counters, scale, table_width, width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SINKS: tl.constexpr,
    LISTED: tl.constexpr, CHECKED: tl.constexpr, PLACES: tl.constexpr, NORMS: tl.constexpr, TURNS: tl.constexpr,
    SCALES: tl.constexpr, BYTES: tl.constexpr, NATIVE: tl.constexpr, SEVERAL: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One sequence's query, the heads that share a kv head, one of SPLITS runs of keys.

    With SEVERAL there are `width` queries of the sequence, one position after another, which see its keys up to their own;
    those past its end are padding.

    With PLACES, `q` is the joined q, k, v as projected: heads are normed and rotated here, and the first run takes the new
    key and value from registers and lays them down in the cache. The run that ends last joins all of them.

    With BYTES the cache is read as words of two 8-bit numbers: a head's even and odd numbers are multiplied by themselves.
    """
    await_others(CHAINS)
    member = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    chunk = tl.load(members + member) if LISTED else member
    token = tl.load(starts + chunk).to(tl.int64)
    if CHECKED and tl.load(starts + chunk + 1) - token != 1:
        return
    context = tl.load(contexts + chunk)
    begin_at = tl.load(places + token).to(tl.int32) + 1 if SEVERAL else context  # what the first query sees
    first = tl.maximum(begin_at - WINDOW, 0) if WINDOW else 0
    origin = first // TILE * TILE
    end = context - 1 if PLACES else context
    span = tl.cdiv(tl.cdiv(end - origin, TILE), SPLITS) * TILE
    low = origin + split * span
    high = tl.minimum(low + span, end)
    table_start = chunk.to(tl.int64) * table_width

    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PAD)[None, :]
    if SEVERAL:
        is_row = rows < width * GROUP
        place_of = (token + rows // GROUP) * HEADS + kv_head * GROUP + rows % GROUP
        seen = tl.minimum(begin_at + rows // GROUP, context)
    else:
        is_row = rows < GROUP
        place_of = token * HEADS + kv_head * GROUP + rows
    head = kv_head * GROUP + rows
    is_query = is_row[:, None] & (columns < DIM)
    kind: tl.constexpr = out.dtype.element_ty
    if PLACES:
        source = q + token * (HEADS + 2 * KV_HEADS) * DIM
        cos, sin = cosine + token * HALF, sine + token * HALF
        query = turned(
            source + head[:, None] * DIM, columns, is_query, q_weight, cos, sin, eps, kind, DIM, HALF, NORMS, TURNS
        )
    else:
        query = tl.load(q + place_of[:, None] * DIM + columns, mask=is_query, other=0.0)
    if BYTES:
        words = tl.arange(0, PAD // 2)[None, :]
        ours = q + place_of[:, None] * DIM + 2 * words
        is_word = is_row[:, None] & (words < DIM // 2)
        even = tl.load(ours, mask=is_word, other=0.0).to(tl.float16)
        odd = tl.load(ours + 1, mask=is_word, other=0.0).to(tl.float16)
        mixed_even = tl.zeros([ROWS, PAD // 2], tl.float32)
        mixed_odd = tl.zeros([ROWS, PAD // 2], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(low, high, TILE):
        positions = begin + tl.arange(0, TILE)
        inside = (positions < high) & (positions >= first)
        slot = slots_of(tables, table_start, positions, inside, BLOCK_SIZE)
        if BYTES:
            place = (slot * KV_HEADS + kv_head)[:, None] * (DIM // 2) + words
            is_key = inside[:, None] & (words < DIM // 2)
            key, key_odd = halves(tl.load(keys + place, mask=is_key, other=0), BYTES, NATIVE)
            value, value_odd = halves(tl.load(values + place, mask=is_key, other=0), BYTES, NATIVE)
            scores = tl.dot(odd, tl.trans(key_odd), tl.dot(even, tl.trans(key))) * scale
        else:
            place = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns
            is_key = inside[:, None] & (columns < DIM)
            key = tl.load(keys + place, mask=is_key, other=0.0).to(query.dtype)
            value = tl.load(values + place, mask=is_key, other=0.0).to(query.dtype)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SCALES:
            scores *= tl.load(key_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        scores = tl.where(inside[None, :], capped(scores, CAP, LOG2_E), float("-inf"))
        if SEVERAL:
            scores = tl.where(positions[None, :] < seen[:, None], scores, float("-inf"))
            if WINDOW:
                scores = tl.where(positions[None, :] >= seen[:, None] - WINDOW, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        safe = tl.where(higher == float("-inf"), 0.0, higher) if SEVERAL else higher
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(peak - safe)
        total = total * fade + tl.sum(weights, axis=1)
        largest = 1.0
        if SCALES:
            scales = tl.load(value_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)
            largest = tl.max(scales, axis=0)  # taken out, so that small scales do not vanish in half precision
            weights *= (scales / tl.where(largest == 0.0, 1.0, largest))[None, :]
        if BYTES:
            weights = weights.to(tl.float16)
            mixed_even = mixed_even * fade[:, None] + tl.dot(weights, value) * largest
            mixed_odd = mixed_odd * fade[:, None] + tl.dot(weights, value_odd) * largest
        else:
            added = tl.dot(weights.to(query.dtype), value, input_precision="ieee") * largest
            mixed = mixed * fade[:, None] + added
        peak = higher
    if BYTES:
        mixed = tl.interleave(mixed_even, mixed_odd)
    if PLACES and split == 0:
        peak, total, mixed = attend_own(
            source, tables + table_start, keys, values, k_weight, cos, sin, eps, query, peak, total, mixed,
            scale, end, kv_head, kind, HEADS, KV_HEADS, ROWS, DIM, PAD, HALF, BLOCK_SIZE, CAP, LOG2_E, NORMS, TURNS,
        )  # fmt: skip
    if SPLITS == 1:
        if SINKS:
            sunk = kv_head * GROUP + rows % GROUP if SEVERAL else head
            total += tl.exp2(tl.load(sinks + sunk, mask=is_row, other=0.0) * LOG2_E - peak)
        tl.store(out + place_of[:, None] * DIM + columns, (mixed / total[:, None]).to(kind), mask=is_query)
    else:
        if SEVERAL:
            laid = (member.to(tl.int64) * width + rows // GROUP) * HEADS + kv_head * GROUP + rows % GROUP
        else:
            laid = member.to(tl.int64) * HEADS + head
        base = laid * SPLITS + split
        tl.store(peaks + base, peak, mask=is_row)
        tl.store(sums + base, total, mask=is_row)
        tl.store(partial + base[:, None] * DIM + columns, mixed, mask=is_query)
        if not SEVERAL:  # else there is too much to join for one program
            tl.debug_barrier()
            counter = counters + member * KV_HEADS + kv_head
            if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
                tl.store(counter, 0)
                _join(
                    out + (token * HEADS + kv_head * GROUP) * DIM + columns, partial, peaks, sums,
                    sinks + kv_head * GROUP, member.to(tl.int64) * HEADS + kv_head * GROUP,
                    kind, GROUP, DIM, PAD, SPLITS, SINKS, LOG2_E,
                )  # fmt: skip


@entry
@triton.jit
def join_heads(
    out, partial, peaks, sums, sinks, HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr,
    SPLITS: tl.constexpr, SINKS: tl.constexpr, LOG2_E: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One head of one query, where every query of the step was answered in runs of its keys."""
    await_others(CHAINS)
    head = tl.program_id(1)
    number = tl.program_id(0).to(tl.int64) * HEADS + head
    _join(
        out + number * DIM + tl.arange(0, PAD)[None, :], partial, peaks, sums, sinks + head, number,
        out.dtype.element_ty, 1, DIM, PAD, SPLITS, SINKS, LOG2_E,
    )  # fmt: skip


def tile_config(num_programs: int, q: Tensor) -> TileConfig:
    """Tiles of the table, in as many runs of keys as keep the device busy."""
    splits = min(triton.next_power_of_2(max(PROGRAMS // num_programs, 1)), MAX_SPLITS)
    tiles = tiles_of("attention of tokens", num_programs, q.shape[-1], value_bytes=q.element_size())
    return replace(tiles, splits=splits)


class Placing(NamedTuple):
    """What is done to heads before they attend."""

    norms: HeadNorms | None
    angles: Angles | None


class Singles(NamedTuple):
    """The chunks of one query each: their numbers, or None when every chunk is one, or is to be asked whether it is.

    Or all chunks of a step, with `width` queries each."""

    num_chunks: int
    members: Tensor | None = None
    is_checked: bool = False
    width: int = 1


@cached_attention.kernel("cuda", fits=lambda *arguments: _places_singles(*arguments))
def placed_attention(
    qkv: Tensor,
    spec: GQA,
    norms: HeadNorms | None,
    angles: Angles | None,
    cache: AnyCache,
    layout: BatchLayout,
    sinks: Tensor | None,
) -> Tensor:
    """Decodes alone: keys and values are laid down by the launch that attends."""
    out = torch.empty((qkv.shape[0], spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device)
    attend_singles(qkv, cache, layout, spec, sinks, Singles(qkv.shape[0]), out, Placing(norms, angles))
    return out


def _places_singles(
    qkv: Tensor,
    spec: GQA,
    norms: HeadNorms | None,
    angles: Angles | None,
    cache: AnyCache,
    layout: BatchLayout,
    sinks: Tensor | None,
) -> bool:
    """Worth it while launches cost more than bytes: with many sequences the longer program hides less latency.

    A cache of 8-bit numbers is read too slowly this way.
    """
    is_by_head = norms is None or norms.q.shape[0] == spec.head_dim
    is_small = len(layout.lengths) * spec.num_kv_heads <= MAX_PLACING_PROGRAMS
    is_plain = isinstance(cache, LayerCache) and cache.keys.element_size() > 1 and qkv.is_contiguous()
    return is_plain and is_by_head and is_small and set(layout.lengths) == {1} and not layout.follows


def common_width(layout: BatchLayout, spec: GQA) -> int:
    """Queries of each chunk where all have as many and few; 0 elsewhere."""
    width = layout.lengths[0] if layout.lengths else 0
    is_few = width * spec.num_heads // spec.num_kv_heads <= MAX_ROWS
    return width if is_few and layout.lengths.count(width) == len(layout.lengths) else 0


def attend_singles(
    q: Tensor,
    cache: AnyCache,
    layout: BatchLayout,
    spec: GQA,
    sinks: Tensor | None,
    singles: Singles,
    out: Tensor,
    placing: Placing | None = None,
    config: TileConfig | None = None,
) -> None:
    group = spec.num_heads // spec.num_kv_heads
    num_programs = singles.num_chunks * spec.num_kv_heads
    config = config or tile_config(num_programs, q)
    splits = config.splits
    is_half = q.element_size() == 2 and placing is None and spec.head_dim % 2 == 0 and spec.head_dim >= 32
    kind = kind_of_bytes(cache) if is_half else 0
    keys, values = (part.view(torch.int16) if kind else part for part in (cache.keys, cache.values))
    counters = layout.derived.get("decode counters")
    if counters is None:
        counters = torch.zeros((singles.num_chunks, spec.num_kv_heads), dtype=torch.int32, device=q.device)
        layout.derived["decode counters"] = counters
    num_queries, several = singles.num_chunks * singles.width, singles.width > 1
    partial = torch.empty((num_queries, spec.num_heads, splits, spec.head_dim if splits > 1 else 0), device=q.device)
    peaks, sums = torch.empty((2, num_queries, spec.num_heads, splits), device=q.device)
    norms, angles = placing or Placing(None, None)
    _decode[(singles.num_chunks, spec.num_kv_heads, splits)](
        q,
        q if angles is None else angles.cosine,
        q if angles is None else angles.sine,
        q if norms is None else norms.q,
        q if norms is None else norms.k,
        0.0 if norms is None else norms.eps,
        keys,
        values,
        *scales_of(cache),
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        layout.positions,
        layout.query_starts if singles.members is None else singles.members,
        q if sinks is None else sinks,
        out,
        partial,
        peaks,
        sums,
        counters,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        singles.width,
        **shape(cache, spec, sinks),
        GROUP=group,
        ROWS=max(triton.next_power_of_2(group * singles.width), 16),
        HALF=0 if angles is None else angles.cosine.shape[-1],
        TILE=config.block,
        SPLITS=splits,
        LISTED=singles.members is not None,
        CHECKED=singles.is_checked,
        PLACES=placing is not None,
        NORMS=norms is not None,
        TURNS=angles is not None,
        BYTES=kind,
        NATIVE=q.is_cuda,
        SEVERAL=several,
        **chained(),
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if several and splits > 1:
        sunk = q if sinks is None else sinks
        join_heads[(num_queries, spec.num_heads)](
            out, partial, peaks, sums, sunk, HEADS=spec.num_heads, DIM=spec.head_dim,
            PAD=triton.next_power_of_2(spec.head_dim), SPLITS=splits, SINKS=sinks is not None, LOG2_E=LOG2_E,
            **chained(), num_warps=2,
        )  # fmt: skip
