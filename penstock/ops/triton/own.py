"""The token of a query itself: heads normed and rotated, its key and value attended to before they are in the cache."""

import triton
import triton.language as tl

from penstock.ops.triton.paged import capped


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
    """Lay the new key and value down at `position`, and take them in from registers: peak, total and mixed with them."""
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
