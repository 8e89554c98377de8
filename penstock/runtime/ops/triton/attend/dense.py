"""Parts of attention that the library's dense kernel computes twice as fast as ours: long prompts in one piece, and what a long
chunk sees of the keys before it. Keys and values are copied out of their blocks first, in 16 bits.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import read_blocks
from penstock.runtime.ops.layout import AnyCache, BatchLayout

MIN_QUERIES = 1024
QUERIES = 512
"""Queries are filled up to a multiple of this: the library prepares itself for each new length, which takes a while."""
PIECES = (65_536, 32_768, 16_384, 8_192, 4_096)
"""Numbers of keys before a chunk that are attended to at once, likewise few."""
MAX_NUMBERS = 1 << 26
"""Of all heads of a piece: models with many of them take smaller pieces, not more memory."""
WAYS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The library's, the fastest first (4,000 queries of 32 heads on an H200: 296 us, then 551)."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A long prompt computed in one piece."""

    begin: int
    length: int
    filled_length: int
    blocks: Tensor
    """Its own, and its first again as often as it takes to fill it up."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Keys before a long chunk, but for fewer than the smallest piece: all of its queries see all of them."""

    begin: int
    length: int
    filled_length: int
    num_keys: int
    pieces: tuple[Tensor, ...]
    """Blocks of each."""


def is_dense(spec: GQA) -> bool:
    """The library's attention computes this kind."""
    return spec.window is None and spec.logit_softcap is None


@cache
def _has_fast_kernel() -> bool:
    """The library's fast kernel is there, which also tells what the weights of all keys add up to."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0) and torch.backends.cudnn.enabled


def has_earlier(spec: GQA, block_size: int) -> bool:
    return is_dense(spec) and spec.head_dim in (64, 128) and PIECES[-1] % block_size == 0 and _has_fast_kernel()


def whole(layout: BatchLayout, chunk: int, block_size: int) -> Whole:
    length = layout.lengths[chunk]
    filled_length = _filled(length)
    numbers = torch.arange(-(-filled_length // block_size), device=layout.block_tables.device)
    blocks = layout.block_tables[chunk, numbers.where(numbers * block_size < length, 0)]
    return Whole(sum(layout.lengths[:chunk]), length, filled_length, blocks)


def _pieces(spec: GQA) -> list[int]:
    return [size for size in PIECES if size * spec.num_kv_heads * spec.head_dim <= MAX_NUMBERS]


def earlier(layout: BatchLayout, chunk: int, block_size: int, spec: GQA) -> Earlier | None:
    length = layout.lengths[chunk]
    rest, sizes = layout.contexts[chunk] - length, list[int]()
    for size in _pieces(spec):
        sizes += [size] * (rest // size)
        rest %= size
    if length < MIN_QUERIES or not sizes:
        return None
    numbers = [size // block_size for size in sizes]
    pieces = layout.block_tables[chunk, : sum(numbers)].long().split(numbers)
    return Earlier(sum(layout.lengths[:chunk]), length, _filled(length), sum(sizes), pieces)


def _filled(length: int) -> int:
    return -(-length // QUERIES) * QUERIES


def prepare_dense(spec: GQA, most_tokens: int, max_context: int, dtype: torch.dtype, device: torch.device) -> None:
    """Have the library prepare itself for whole prompts of every length up to so many tokens, and for the keys before the
    longest chunk: a second, then 60 ms each."""
    if not is_dense(spec) or spec.sinks or dtype.itemsize != 2:
        return

    def rows(length: int, heads: int) -> Tensor:
        return torch.zeros((length, heads, spec.head_dim), dtype=dtype, device=device)

    for length in range(_filled(MIN_QUERIES), most_tokens + 1, QUERIES):
        keys = rows(length, spec.num_kv_heads)
        _attend_dense(rows(length, spec.num_heads), keys, keys, spec)
    if has_earlier(spec, PIECES[-1]) and most_tokens >= MIN_QUERIES:
        queries = rows(_filled(most_tokens), spec.num_heads)
        for size in _pieces(spec):
            if size + most_tokens <= max_context:
                keys = rows(size, spec.num_kv_heads)
                _attend_earlier(queries, keys, keys, spec)


def attend_whole(q: Tensor, cache: AnyCache, spec: GQA, whole: Whole) -> Tensor:
    """What it is filled up with stands behind every real query, which so never sees it, and must be finite."""
    keys, values = (part[: whole.filled_length] for part in _read(cache, whole.blocks, q.dtype))
    if whole.length < whole.filled_length:
        keys[whole.length :] = 0.0
        values[whole.length :] = 0.0
    return _attend_dense(_queries(q, whole), keys, values, spec)[: whole.length]


def attend_earlier(q: Tensor, cache: AnyCache, spec: GQA, earlier: Earlier) -> tuple[Tensor, Tensor]:
    """Weighted values [queries, heads, head_dim], and the logarithms of what the weights add up to [heads, queries]."""
    queries = _queries(q, earlier)
    found, total = _attend_earlier(queries, *_read(cache, earlier.pieces[0], q.dtype), spec)
    for blocks in earlier.pieces[1:]:
        other, weight = _attend_earlier(queries, *_read(cache, blocks, q.dtype), spec)
        total = torch.logaddexp(total, weight)
        found.lerp_(other, (weight - total).exp_().t().unsqueeze(-1).to(found.dtype))
    return found, total


def _read(cache: AnyCache, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    keys, values = read_blocks(cache, blocks)
    return keys.to(dtype).flatten(0, 1), values.to(dtype).flatten(0, 1)


def _queries(q: Tensor, part: Whole | Earlier) -> Tensor:
    ours = q[part.begin : part.begin + part.length]
    if part.length == part.filled_length:
        return ours
    queries = q.new_zeros((part.filled_length, *q.shape[1:]))
    queries[: part.length] = ours
    return queries


def _attend_dense(queries: Tensor, keys: Tensor, values: Tensor, spec: GQA) -> Tensor:
    queries, keys, values = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    with sdpa_kernel(WAYS, set_priority=True):
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=spec.scale, enable_gqa=True
        )
    return attended[0].transpose(0, 1)


def _attend_earlier(queries: Tensor, keys: Tensor, values: Tensor, spec: GQA) -> tuple[Tensor, Tensor]:
    parts = [part.transpose(0, 1)[None] for part in (queries, keys, values)]
    attended, total, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *parts, None, True, 0.0, False, False, scale=spec.scale
    )
    return attended[0].transpose(0, 1), total[0, :, :, 0]
