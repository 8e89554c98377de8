"""From the joined q, k, v to rotated queries and a written cache in one launch; blocks of all layers, likewise in one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.kv_write import (
    LEAST,
    MOST_WHOLE,
    BlockParts,
    HeadNorms,
    gather_blocks,
    place_qkv,
    scatter_blocks,
)
from penstock.runtime.ops.layout import AnyCache, ScaledCache
from penstock.runtime.ops.rope import Angles
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry

TILE = 16
"""Tokens a program handles when there are many."""
MOVED = 1024
"""Words of a block that a program moves at a time."""


@triton.jit
def _nearest(numbers):
    """Whole numbers nearest to some below 2**22, even ones where two are as near."""
    return (numbers + 12582912.0) - 12582912.0


@triton.jit
def _whole(first, second, rest, MOST: tl.constexpr, LEAST: tl.constexpr):
    """The three parts of heads as whole numbers up to MOST, and the scale of each head."""
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    higher = tl.maximum(tl.maximum(tl.abs(first), tl.abs(second)), tl.abs(rest))
    most = tl.maximum(tl.max(higher, axis=1), LEAST)[:, None]
    inverse = tl.div_rn(MOST, most)
    ruin = tl.sum(first * 0.0 + second * 0.0 + rest * 0.0, axis=1)[:, None]  # NaN if a number is not finite, else 0
    return _nearest(first * inverse), _nearest(second * inverse), _nearest(rest * inverse), tl.div_rn(most, MOST) + ruin


@entry
@triton.jit(do_not_specialize=["num_tokens"])
def _place(
    qkv, cosine, sine, q_weight, k_weight, queries, keys, values, key_scales, value_scales, slots, eps, num_tokens,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
    NORMS: tl.constexpr, TURNS: tl.constexpr, TILE: tl.constexpr,
    SCALES: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """A head is read as its two rotary halves and what lies past them:  | first HALF | second HALF | rest |"""
    await_others(CHAINS)
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    head = tl.program_id(1)
    present = (tokens < num_tokens)[:, None]
    pair = tl.arange(0, PAD)[None, :]
    is_pair = present & (pair < HALF)
    is_rest = present & (pair + 2 * HALF < DIM)
    wide = tokens.to(tl.int64)[:, None]
    source = qkv + (wide * (HEADS + 2 * KV_HEADS) + head) * DIM + pair
    kind = queries.dtype.element_ty
    first = tl.load(source, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=is_pair, other=0.0).to(tl.float32)
    rest = tl.load(source + 2 * HALF, mask=is_rest, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        if NORMS:
            squares = tl.sum(first * first + second * second + rest * rest, axis=1)
            scale = tl.rsqrt(squares / DIM + eps)[:, None]
            weight = q_weight if head < HEADS else k_weight
            first = first * scale * tl.load(weight + pair, mask=pair < HALF, other=0.0)
            second = second * scale * tl.load(weight + HALF + pair, mask=pair < HALF, other=0.0)
            rest = rest * scale * tl.load(weight + 2 * HALF + pair, mask=pair + 2 * HALF < DIM, other=0.0)
            first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
        if TURNS:
            turn = wide * HALF + pair
            cos = tl.load(cosine + turn, mask=is_pair, other=0.0)
            sin = tl.load(sine + turn, mask=is_pair, other=0.0)
            first, second = first * cos - second * sin, second * cos + first * sin
    if head < HEADS:
        target = queries + (wide * HEADS + head) * DIM + pair
        tl.store(target, first.to(kind), mask=is_pair)
        tl.store(target + HALF, second.to(kind), mask=is_pair)
        tl.store(target + 2 * HALF, rest.to(kind), mask=is_rest)
    else:
        slot = tl.load(slots + tokens, mask=tokens < num_tokens, other=0).to(tl.int64)[:, None]
        kv_head = (head - HEADS) % KV_HEADS
        cache = keys if head < HEADS + KV_HEADS else values
        stored = cache.dtype.element_ty
        place = cache + (slot * KV_HEADS + kv_head) * DIM + pair
        if SCALES:
            first, second, rest, scale = _whole(first.to(kind), second.to(kind), rest.to(kind), MOST, LEAST)
            scales = key_scales if head < HEADS + KV_HEADS else value_scales
            tl.store(scales + slot * KV_HEADS + kv_head, scale, mask=present)
        tl.store(place, first.to(stored), mask=is_pair)
        tl.store(place + HALF, second.to(stored), mask=is_pair)
        tl.store(place + 2 * HALF, rest.to(stored), mask=is_rest)


def _fits(
    qkv: Tensor, spec: GQA, norms: HeadNorms | None, angles: Angles | None, cache: AnyCache, slots: Tensor
) -> bool:
    """Norms over all heads at once are left to the definition."""
    is_by_head = norms is None or norms.q.shape[0] == spec.head_dim
    return is_by_head and qkv.is_contiguous() and qkv.shape[0] > 0 and spec.head_dim % 2 == 0


@place_qkv.kernel("cuda", fits=_fits)
def place_heads(
    qkv: Tensor, spec: GQA, norms: HeadNorms | None, angles: Angles | None, cache: AnyCache, slots: Tensor
) -> Tensor:
    num_tokens = qkv.shape[0]
    queries = torch.empty((num_tokens, spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device)
    half = spec.head_dim // 2 if angles is None else angles.cosine.shape[-1]
    longest = max(half, spec.head_dim - 2 * half)
    tile = 1 if num_tokens <= 64 else TILE
    grid = (triton.cdiv(num_tokens, tile), spec.num_heads + 2 * spec.num_kv_heads)
    _place[grid](
        qkv,
        qkv if angles is None else angles.cosine,
        qkv if angles is None else angles.sine,
        qkv if norms is None else norms.q,
        qkv if norms is None else norms.k,
        queries,
        cache.keys,
        cache.values,
        cache.key_scales if isinstance(cache, ScaledCache) else cache.keys,
        cache.value_scales if isinstance(cache, ScaledCache) else cache.values,
        slots,
        0.0 if norms is None else norms.eps,
        num_tokens,
        HEADS=spec.num_heads,
        KV_HEADS=spec.num_kv_heads,
        DIM=spec.head_dim,
        HALF=half,
        PAD=triton.next_power_of_2(longest),
        NORMS=norms is not None,
        TURNS=angles is not None,
        TILE=tile,
        SCALES=isinstance(cache, ScaledCache),
        MOST=MOST_WHOLE,
        LEAST=LEAST,
        **chained(),
        num_warps=1 if tile == 1 else 4,
    )
    return queries


@entry
@triton.jit(do_not_specialize=["num_words"])
def _move(blocks, pointers, rows, num_words, OUT: tl.constexpr, WORDS: tl.constexpr):
    """One part of one block, to its place in a row of all parts or from there. Parts lie wherever they were allocated."""
    part, number = tl.program_id(0), tl.program_id(1).to(tl.int64)
    block = tl.load(blocks + number).to(tl.int64)
    cache = tl.load(pointers + part).to(tl.pointer_type(tl.int32)) + block * num_words
    row = rows + (number * tl.num_programs(0) + part) * num_words
    for begin in range(0, num_words, WORDS):
        word = begin + tl.arange(0, WORDS)
        if OUT:
            tl.store(row + word, tl.load(cache + word, mask=word < num_words), mask=word < num_words)
        else:
            tl.store(cache + word, tl.load(row + word, mask=word < num_words), mask=word < num_words)


def _are_alike(blocks: Tensor, parts: BlockParts, rows: Tensor | None = None) -> bool:
    """Blocks of all parts have as many bytes: no scales beside numbers."""
    return parts.word_count is not None


def _moved(blocks: Tensor, parts: BlockParts, rows: Tensor, *, out: bool) -> None:
    _move[len(parts.tensors), len(blocks)](
        blocks, parts.pointers, rows.view(torch.int32), parts.word_count, OUT=out, WORDS=MOVED, num_warps=4
    )


@gather_blocks.kernel("cuda", fits=_are_alike)
def gather_all_layers(blocks: Tensor, parts: BlockParts) -> Tensor:
    rows = torch.empty((len(blocks), parts.block_bytes), dtype=torch.uint8, device=blocks.device)
    _moved(blocks, parts, rows, out=True)
    return rows


@scatter_blocks.kernel("cuda", fits=_are_alike)
def scatter_all_layers(blocks: Tensor, parts: BlockParts, rows: Tensor) -> None:
    _moved(blocks, parts, rows.contiguous(), out=False)
