"""What kernels over the paged cache share: finding keys, capping scores, sweeping over a run of keys of 16 or of 8 bits, a
token that is not in the cache yet.

Scores are kept in base 2 (scale carries log2 e).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.layout import AnyCache, ScaledCache

LOG2_E = 1.4426950408889634
FLOATS, WHOLES = 1, 2
"""Kinds of 8-bit numbers in a cache; 0 is none."""

_FLOATS_TO_HALVES = """{
    .reg .b32 sorted; .reg .b16 low, high;
    prmt.b32 sorted, $2, 0, 0x3120;
    mov.b32 {low, high}, sorted;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}"""
# A byte plus 128 in the low bits of 1024.0 is 1152 more than the number.
_WHOLES_TO_HALVES = """{
    .reg .b32 raised, low, high, off, thousand;
    mov.b32 thousand, 0x64646464;
    mov.b32 off, 0x64806480;
    xor.b32 raised, $2, 0x80808080;
    prmt.b32 low, raised, thousand, 0x4240;
    prmt.b32 high, raised, thousand, 0x4341;
    sub.f16x2 $0, low, off;
    sub.f16x2 $1, high, off;
}"""
FLOATS_TO_HALVES = tl.constexpr(_FLOATS_TO_HALVES)
WHOLES_TO_HALVES = tl.constexpr(_WHOLES_TO_HALVES)


@triton.jit
def capped(scores, CAP: tl.constexpr, LOG2_E: tl.constexpr):
    """Scores in base 2, softly capped where there is a cap."""
    if CAP > 0:
        bent = scores / (CAP * LOG2_E)
        scores = (2.0 * tl.sigmoid(2.0 * bent) - 1.0) * (CAP * LOG2_E)
    return scores


@triton.jit
def slots_of(tables, table_start, positions, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(tables + table_start + positions // BLOCK_SIZE, mask=inside, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def halves(pairs, BYTES: tl.constexpr, NATIVE: tl.constexpr):
    """The numbers in the low and in the high bytes of 16-bit words, in half precision and exactly.

    Read as words, 8-bit numbers reach the matrix units by the same fast ways through shared memory as 16-bit ones.
    """
    if NATIVE:
        if BYTES == 1:
            low, high = tl.inline_asm_elementwise(
                FLOATS_TO_HALVES, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
        else:
            low, high = tl.inline_asm_elementwise(
                WHOLES_TO_HALVES, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
    else:
        first, second = (pairs & 0xFF).to(tl.int8), (pairs >> 8).to(tl.int8)
        if BYTES == 1:
            low = first.to(tl.float8e4nv, bitcast=True).to(tl.float16)
            high = second.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        else:
            low, high = first.to(tl.float16), second.to(tl.float16)
    return low, high


@triton.jit
def run_of(first, end, split, TILE: tl.constexpr, SPLITS: tl.constexpr):
    """Begin and end of one of SPLITS runs of the keys first .. end, in whole tiles."""
    origin = first // TILE * TILE
    span = tl.cdiv(tl.cdiv(end - origin, TILE), SPLITS) * TILE
    low = origin + split * span
    return low, tl.minimum(low + span, end)


@triton.jit
def seen_only(
    scores, positions, inside, seen, CAP: tl.constexpr, LOG2_E: tl.constexpr, WINDOW: tl.constexpr,
    SEVERAL: tl.constexpr,
):  # fmt: skip
    """Capped scores of keys that are seen. With SEVERAL, rows see different numbers of keys."""
    scores = tl.where(inside[None, :], capped(scores, CAP, LOG2_E), float("-inf"))
    if SEVERAL:
        scores = tl.where(positions[None, :] < seen[:, None], scores, float("-inf"))
        if WINDOW:
            scores = tl.where(positions[None, :] >= seen[:, None] - WINDOW, scores, float("-inf"))
    return scores


@triton.jit
def softened(scores, peak, total, SEVERAL: tl.constexpr):
    """Weights of a tile's keys, what is left of the weights before it, and peak and total with them."""
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    safe = tl.where(higher == float("-inf"), 0.0, higher) if SEVERAL else higher
    weights = tl.exp2(scores - safe[:, None])
    fade = tl.exp2(peak - safe)
    return weights, fade, higher, total * fade + tl.sum(weights, axis=1)


@triton.jit
def scaled(weights, scales):
    """Weights times the values' scales. The largest is taken out, so that small ones do not vanish in half precision."""
    largest = tl.max(scales, axis=0)
    return weights * (scales / tl.where(largest == 0.0, 1.0, largest))[None, :], largest


@triton.jit
def sweep_keys(
    query, seen, first, low, high, keys, values, key_scales, value_scales, table, kv_head, scale,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SCALES: tl.constexpr,
    SEVERAL: tl.constexpr,
):  # fmt: skip
    """What queries [ROWS, PAD] make of the keys low .. high: highest score, sum of weights, weighted values."""
    columns = tl.arange(0, PAD)[None, :]
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(low, high, TILE):
        positions = begin + tl.arange(0, TILE)
        inside = (positions < high) & (positions >= first)
        slot = slots_of(table, 0, positions, inside, BLOCK_SIZE)
        place = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns
        is_key = inside[:, None] & (columns < DIM)
        key = tl.load(keys + place, mask=is_key, other=0.0).to(query.dtype)
        value = tl.load(values + place, mask=is_key, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SCALES:
            scores *= tl.load(key_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        scores = seen_only(scores, positions, inside, seen, CAP, LOG2_E, WINDOW, SEVERAL)
        weights, fade, peak, total = softened(scores, peak, total, SEVERAL)
        largest = 1.0
        if SCALES:
            scales = tl.load(value_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)
            weights, largest = scaled(weights, scales)
        added = tl.dot(weights.to(query.dtype), value, input_precision="ieee") * largest
        mixed = mixed * fade[:, None] + added
    return peak, total, mixed


@triton.jit
def sweep_words(
    heads, is_row, seen, first, low, high, keys, values, key_scales, value_scales, table, kv_head, scale,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr, SCALES: tl.constexpr,
    SEVERAL: tl.constexpr, BYTES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The same of a cache that is read as words of two 8-bit numbers: a head's even and odd numbers are multiplied by
    themselves. `heads` are where the queries of each row begin."""
    words = tl.arange(0, PAD // 2)[None, :]
    is_word = is_row[:, None] & (words < DIM // 2)
    even = tl.load(heads + 2 * words, mask=is_word, other=0.0).to(tl.float16)
    odd = tl.load(heads + 2 * words + 1, mask=is_word, other=0.0).to(tl.float16)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed_even = tl.zeros([ROWS, PAD // 2], tl.float32)
    mixed_odd = tl.zeros([ROWS, PAD // 2], tl.float32)
    for begin in range(low, high, TILE):
        positions = begin + tl.arange(0, TILE)
        inside = (positions < high) & (positions >= first)
        slot = slots_of(table, 0, positions, inside, BLOCK_SIZE)
        place = (slot * KV_HEADS + kv_head)[:, None] * (DIM // 2) + words
        is_key = inside[:, None] & (words < DIM // 2)
        key, key_odd = halves(tl.load(keys + place, mask=is_key, other=0), BYTES, NATIVE)
        value, value_odd = halves(tl.load(values + place, mask=is_key, other=0), BYTES, NATIVE)
        scores = tl.dot(odd, tl.trans(key_odd), tl.dot(even, tl.trans(key))) * scale
        if SCALES:
            scores *= tl.load(key_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)[None, :]
        scores = seen_only(scores, positions, inside, seen, CAP, LOG2_E, WINDOW, SEVERAL)
        weights, fade, peak, total = softened(scores, peak, total, SEVERAL)
        largest = 1.0
        if SCALES:
            scales = tl.load(value_scales + slot * KV_HEADS + kv_head, mask=inside, other=0.0)
            weights, largest = scaled(weights, scales)
        weights = weights.to(tl.float16)
        mixed_even = mixed_even * fade[:, None] + tl.dot(weights, value) * largest
        mixed_odd = mixed_odd * fade[:, None] + tl.dot(weights, value_odd) * largest
    return peak, total, tl.interleave(mixed_even, mixed_odd)


@triton.jit
def turned(
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


@triton.jit
def attend_own(
    source, table, keys, values, weight, cos, sin, eps, query, peak, total, mixed, scale, position, kv_head,
    kind: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    PAD: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr, CAP: tl.constexpr, LOG2_E: tl.constexpr,
    NORMS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Write the new key and value at `position`, and add them from registers: peak, total and mixed with them."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, PAD)[None, :]
    ours = HEADS + kv_head + rows * 0
    key = turned(source + ours * DIM, columns, columns < DIM, weight, cos, sin, eps, kind, DIM, HALF, NORMS, TURNS)
    value = tl.load(source + (ours + KV_HEADS) * DIM + columns, mask=columns < DIM, other=0.0)
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
    place = ((block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + kv_head) * DIM + columns + rows * 0
    tl.store(keys + place, key.to(keys.dtype.element_ty), mask=(rows == 0) & (columns < DIM))
    tl.store(values + place, value.to(values.dtype.element_ty), mask=(rows == 0) & (columns < DIM))
    key = key.to(keys.dtype.element_ty).to(kind)  # as the steps after this one will read them
    value = value.to(values.dtype.element_ty).to(kind)
    score = capped(tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale, CAP, LOG2_E)
    higher = tl.maximum(peak, score)
    weight_of_own = tl.exp2(score - higher)
    fade = tl.exp2(peak - higher)
    total = total * fade + weight_of_own
    mixed = mixed * fade[:, None] + weight_of_own[:, None] * value.to(tl.float32)
    return higher, total, mixed


def kind_of_bytes(cache: AnyCache) -> int:
    if cache.keys.element_size() > 1:
        return 0
    return FLOATS if cache.keys.dtype == torch.float8_e4m3fn else WHOLES


def shape(cache: AnyCache, spec: GQA, sinks: Tensor | None) -> dict[str, int | float | bool]:
    """Arguments every kernel over the cache takes."""
    return {
        "HEADS": spec.num_heads,
        "KV_HEADS": spec.num_kv_heads,
        "DIM": spec.head_dim,
        "PAD": triton.next_power_of_2(spec.head_dim),
        "BLOCK_SIZE": cache.block_size,
        "LOG2_E": LOG2_E,
        "SINKS": sinks is not None,
        "SCALES": isinstance(cache, ScaledCache),
        "WINDOW": spec.window or 0,
        "CAP": spec.logit_softcap or 0.0,
    }


def scales_of(cache: AnyCache) -> tuple[Tensor, Tensor]:
    """A cache without scales hands over its numbers, which are then not read as scales."""
    return (cache.key_scales, cache.value_scales) if isinstance(cache, ScaledCache) else (cache.keys, cache.values)
