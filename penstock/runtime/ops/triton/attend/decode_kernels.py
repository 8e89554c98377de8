"""Kernels of single queries over the paged cache, or of as many of each sequence; a program takes one run of the keys.

Three entries: queries as they are, queries whose key and value are laid down by the same launch, several queries a sequence.
"""

import triton
import triton.language as tl

from penstock.runtime.ops.triton.attend.paged import attend_own, run_of, sweep_keys, sweep_words, turned
from penstock.runtime.ops.triton.host.chain import await_others
from penstock.runtime.ops.triton.host.launch import entry


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


@triton.jit
def _settle(
    target, sinks, peak, total, mixed, is_row, DIM: tl.constexpr, PAD: tl.constexpr, SINKS: tl.constexpr,
    LOG2_E: tl.constexpr,
):  # fmt: skip
    """Rows whose keys were all in one run: what they saw goes to `target`. `sinks` are where each row's sink is."""
    columns = tl.arange(0, PAD)[None, :]
    if SINKS:
        total += tl.exp2(tl.load(sinks, mask=is_row, other=0.0) * LOG2_E - peak)
    kind: tl.constexpr = target.dtype.element_ty
    tl.store(target + columns, (mixed / total[:, None]).to(kind), mask=is_row[:, None] & (columns < DIM))


@triton.jit
def _keep(
    partial, peaks, sums, base, peak, total, mixed, is_row, DIM: tl.constexpr, PAD: tl.constexpr
):  # fmt: skip
    """What one run of a row's keys gave, to be joined with the others."""
    columns = tl.arange(0, PAD)[None, :]
    tl.store(peaks + base, peak, mask=is_row)
    tl.store(sums + base, total, mask=is_row)
    tl.store(partial + base[:, None] * DIM + columns, mixed, mask=is_row[:, None] & (columns < DIM))


@triton.jit
def _end(
    token, member, kv_head, split, peak, total, mixed, sinks, out, partial, peaks, sums, counters,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    PAD: tl.constexpr, SPLITS: tl.constexpr, SINKS: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """The heads of one token that share a kv head have seen their run of keys. The run that ends last joins all of them."""
    rows = tl.arange(0, ROWS)
    head = kv_head * GROUP + rows
    is_row = rows < GROUP
    if SPLITS == 1:
        target = out + (token * HEADS + head)[:, None] * DIM
        _settle(target, sinks + head, peak, total, mixed, is_row, DIM, PAD, SINKS, LOG2_E)
    else:
        base = (member.to(tl.int64) * HEADS + head) * SPLITS + split
        _keep(partial, peaks, sums, base, peak, total, mixed, is_row, DIM, PAD)
        tl.debug_barrier()
        counter = counters + member * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(counter, 0)
            _join(
                out + (token * HEADS + kv_head * GROUP) * DIM + tl.arange(0, PAD)[None, :], partial, peaks, sums,
                sinks + kv_head * GROUP, member.to(tl.int64) * HEADS + kv_head * GROUP,
                out.dtype.element_ty, GROUP, DIM, PAD, SPLITS, SINKS, LOG2_E,
            )  # fmt: skip


@entry
@triton.jit(
    do_not_specialize=["table_width"],
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "members", "peaks", "sums", "counters"],
)
def decode_tokens(
    q, keys, values, key_scales, value_scales, tables, starts, contexts, members, sinks, out, partial, peaks, sums,
    counters, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, LOG2_E: tl.constexpr, SINKS: tl.constexpr, LISTED: tl.constexpr, CHECKED: tl.constexpr,
    SCALES: tl.constexpr, BYTES: tl.constexpr, NATIVE: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One sequence's query, the heads that share a kv head, one of SPLITS runs of keys."""
    await_others(CHAINS)
    member = tl.program_id(1)
    kv_head = tl.program_id(0)
    split = tl.program_id(2)
    chunk = tl.load(members + member) if LISTED else member
    token = tl.load(starts + chunk).to(tl.int64)
    if CHECKED and tl.load(starts + chunk + 1) - token != 1:
        return
    context = tl.load(contexts + chunk)
    first = tl.maximum(context - WINDOW, 0) if WINDOW else 0
    low, high = run_of(first, context, split, TILE, SPLITS)
    table = tables + chunk.to(tl.int64) * table_width
    rows = tl.arange(0, ROWS)
    is_row = rows < GROUP
    heads = q + (token * HEADS + kv_head * GROUP + rows)[:, None] * DIM
    if BYTES:
        peak, total, mixed = sweep_words(
            heads, is_row, rows, first, low, high, keys, values, key_scales, value_scales, table, kv_head, scale,
            ROWS, KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, False, BYTES, NATIVE,
        )  # fmt: skip
    else:
        columns = tl.arange(0, PAD)[None, :]
        query = tl.load(heads + columns, mask=is_row[:, None] & (columns < DIM), other=0.0)
        peak, total, mixed = sweep_keys(
            query, rows, first, low, high, keys, values, key_scales, value_scales, table, kv_head, scale,
            ROWS, KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, False,
        )  # fmt: skip
    _end(
        token, member, kv_head, split, peak, total, mixed, sinks, out, partial, peaks, sums, counters,
        HEADS, KV_HEADS, GROUP, ROWS, DIM, PAD, SPLITS, SINKS, LOG2_E,
    )  # fmt: skip


@entry
@triton.jit(
    do_not_specialize=["table_width"],
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "peaks", "sums", "counters"],
)
def decode_placed(
    qkv, cosine, sine, q_weight, k_weight, eps, keys, values, tables, starts, contexts, sinks, out, partial, peaks,
    sums, counters, scale, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    PAD: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SINKS: tl.constexpr, SCALES: tl.constexpr,
    NORMS: tl.constexpr, TURNS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """The same from joined q, k, v as projected: heads are normed and rotated here, and the first run takes the new key and
    value from registers and lays them down in the cache."""
    await_others(CHAINS)
    member = tl.program_id(1)
    kv_head = tl.program_id(0)
    split = tl.program_id(2)
    token = tl.load(starts + member).to(tl.int64)
    context = tl.load(contexts + member)
    first = tl.maximum(context - WINDOW, 0) if WINDOW else 0
    low, high = run_of(first, context - 1, split, TILE, SPLITS)
    table = tables + member.to(tl.int64) * table_width
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PAD)[None, :]
    is_query = (rows < GROUP)[:, None] & (columns < DIM)
    kind: tl.constexpr = out.dtype.element_ty
    source = qkv + token * (HEADS + 2 * KV_HEADS) * DIM
    cos, sin = cosine + token * HALF, sine + token * HALF
    heads = source + (kv_head * GROUP + rows)[:, None] * DIM
    query = turned(heads, columns, is_query, q_weight, cos, sin, eps, kind, DIM, HALF, NORMS, TURNS)
    peak, total, mixed = sweep_keys(
        query, rows, first, low, high, keys, values, keys, values, table, kv_head, scale,
        ROWS, KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, False,
    )  # fmt: skip
    if split == 0:
        peak, total, mixed = attend_own(
            source, table, keys, values, k_weight, cos, sin, eps, query, peak, total, mixed,
            scale, context - 1, kv_head, kind, HEADS, KV_HEADS, ROWS, DIM, PAD, HALF, BLOCK_SIZE, CAP, LOG2_E,
            NORMS, TURNS,
        )  # fmt: skip
    _end(
        token, member, kv_head, split, peak, total, mixed, sinks, out, partial, peaks, sums, counters,
        HEADS, KV_HEADS, GROUP, ROWS, DIM, PAD, SPLITS, SINKS, LOG2_E,
    )  # fmt: skip


@entry
@triton.jit(
    do_not_specialize=["table_width", "width"],
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "places", "peaks", "sums"],
)
def decode_several(
    q, keys, values, key_scales, value_scales, tables, starts, contexts, places, sinks, out, partial, peaks, sums,
    scale, table_width, width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, LOG2_E: tl.constexpr, SINKS: tl.constexpr, SCALES: tl.constexpr, BYTES: tl.constexpr,
    NATIVE: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """`width` queries of a sequence, one position after another, which see its keys up to their own; those past its end are
    padding. There is too much to join for one program: `join_heads` does it."""
    await_others(CHAINS)
    chunk = tl.program_id(1)
    kv_head = tl.program_id(0)
    split = tl.program_id(2)
    token = tl.load(starts + chunk).to(tl.int64)
    context = tl.load(contexts + chunk)
    begin_at = tl.load(places + token).to(tl.int32) + 1  # what the first query sees
    first = tl.maximum(begin_at - WINDOW, 0) if WINDOW else 0
    low, high = run_of(first, context, split, TILE, SPLITS)
    table = tables + chunk.to(tl.int64) * table_width
    rows = tl.arange(0, ROWS)
    is_row = rows < width * GROUP
    head = kv_head * GROUP + rows % GROUP
    seen = tl.minimum(begin_at + rows // GROUP, context)
    row_of = (token + rows // GROUP) * HEADS + head
    heads = q + row_of[:, None] * DIM
    if BYTES:
        peak, total, mixed = sweep_words(
            heads, is_row, seen, first, low, high, keys, values, key_scales, value_scales, table, kv_head, scale,
            ROWS, KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, True, BYTES, NATIVE,
        )  # fmt: skip
    else:
        columns = tl.arange(0, PAD)[None, :]
        query = tl.load(heads + columns, mask=is_row[:, None] & (columns < DIM), other=0.0)
        peak, total, mixed = sweep_keys(
            query, seen, first, low, high, keys, values, key_scales, value_scales, table, kv_head, scale,
            ROWS, KV_HEADS, DIM, PAD, BLOCK_SIZE, TILE, WINDOW, CAP, LOG2_E, SCALES, True,
        )  # fmt: skip
    if SPLITS == 1:
        target = out + row_of[:, None] * DIM
        _settle(target, sinks + head, peak, total, mixed, is_row, DIM, PAD, SINKS, LOG2_E)
    else:
        base = ((chunk.to(tl.int64) * width + rows // GROUP) * HEADS + head) * SPLITS + split
        _keep(partial, peaks, sums, base, peak, total, mixed, is_row, DIM, PAD)


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
