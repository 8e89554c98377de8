"""Attention of single queries over the paged cache, or of as many of each sequence; its keys are split over programs."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.cached_attention import cached_attention
from penstock.runtime.ops.kv_write import HeadNorms
from penstock.runtime.ops.layout import AnyCache, BatchLayout, LayerCache
from penstock.runtime.ops.rope import Angles
from penstock.runtime.ops.triton.attend.decode_kernels import decode_placed, decode_several, decode_tokens, join_heads
from penstock.runtime.ops.triton.attend.paged import LOG2_E, kind_of_bytes, scales_of, shape
from penstock.runtime.ops.triton.host.chain import chained
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of

PROGRAMS = 264
"""Programs that keep the whole chip busy: two on each multiprocessor."""
MAX_SPLITS = 32
MAX_PLACING_PROGRAMS = 32
MAX_ROWS = 64
"""Queries times heads of a kv head that a program takes at most."""


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
    attend_placed(qkv, cache, layout, spec, sinks, Placing(norms, angles), out)
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


class Runs(NamedTuple):
    """What runs of keys leave for each other."""

    partial: Tensor
    peaks: Tensor
    sums: Tensor


def _runs(num_queries: int, spec: GQA, splits: int, device: torch.device) -> Runs:
    shape = num_queries, spec.num_heads, splits
    return Runs(
        torch.empty((*shape, spec.head_dim if splits > 1 else 0), device=device),
        *torch.empty((2, *shape), device=device),
    )


def _counters(layout: BatchLayout, num_chunks: int, spec: GQA) -> Tensor:
    """Of runs that have ended. The last one leaves them at zero, for the next layer."""
    counters = layout.derived.get("decode counters")
    if counters is None:
        counters = torch.zeros((num_chunks, spec.num_kv_heads), dtype=torch.int32, device=layout.block_tables.device)
        layout.derived["decode counters"] = counters
    return counters


def _cut(cache: AnyCache, spec: GQA, sinks: Tensor | None, width: int, config: TileConfig) -> dict[str, Any]:
    group = spec.num_heads // spec.num_kv_heads
    rows = max(triton.next_power_of_2(group * width), 16)
    sizes = {"GROUP": group, "ROWS": rows, "TILE": config.block, "SPLITS": config.splits}
    return shape(cache, spec, sinks) | sizes | chained() | {"num_warps": config.warps, "num_stages": config.stages}


def attend_placed(
    qkv: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None, placing: Placing, out: Tensor
) -> None:
    count = qkv.shape[0]
    config = tile_config(count * spec.num_kv_heads, qkv)
    norms, angles = placing
    decode_placed[(spec.num_kv_heads, count, config.splits)](
        qkv,
        qkv if angles is None else angles.cosine,
        qkv if angles is None else angles.sine,
        qkv if norms is None else norms.q,
        qkv if norms is None else norms.k,
        0.0 if norms is None else norms.eps,
        cache.keys,
        cache.values,
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        qkv if sinks is None else sinks,
        out,
        *_runs(count, spec, config.splits, qkv.device),
        _counters(layout, count, spec),
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        **_cut(cache, spec, sinks, 1, config),
        HALF=0 if angles is None else angles.cosine.shape[-1],
        NORMS=norms is not None,
        TURNS=angles is not None,
    )


def attend_singles(
    q: Tensor,
    cache: AnyCache,
    layout: BatchLayout,
    spec: GQA,
    sinks: Tensor | None,
    singles: Singles,
    out: Tensor,
    config: TileConfig | None = None,
) -> None:
    if singles.width > 1:
        _attend_several(q, cache, layout, spec, sinks, singles.width, out)
        return
    config = config or tile_config(singles.num_chunks * spec.num_kv_heads, q)
    keys, values, kind = _words(q, cache, spec)
    decode_tokens[(spec.num_kv_heads, singles.num_chunks, config.splits)](
        q,
        keys,
        values,
        *scales_of(cache),
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        layout.query_starts if singles.members is None else singles.members,
        q if sinks is None else sinks,
        out,
        *_runs(singles.num_chunks, spec, config.splits, q.device),
        _counters(layout, singles.num_chunks, spec),
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        **_cut(cache, spec, sinks, 1, config),
        LISTED=singles.members is not None,
        CHECKED=singles.is_checked,
        BYTES=kind,
        NATIVE=q.is_cuda,
    )


def _attend_several(
    q: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None, width: int, out: Tensor
) -> None:
    num_chunks, sunk = len(q) // width, q if sinks is None else sinks
    config = tile_config(num_chunks * spec.num_kv_heads, q)
    keys, values, kind = _words(q, cache, spec)
    runs = _runs(len(q), spec, config.splits, q.device)
    decode_several[(spec.num_kv_heads, num_chunks, config.splits)](
        q,
        keys,
        values,
        *scales_of(cache),
        layout.block_tables,
        layout.query_starts,
        layout.context_lengths,
        layout.positions,
        sunk,
        out,
        *runs,
        spec.scale * LOG2_E,
        layout.block_tables.stride(0),
        width,
        **_cut(cache, spec, sinks, width, config),
        BYTES=kind,
        NATIVE=q.is_cuda,
    )
    if config.splits > 1:
        join_heads[(len(q), spec.num_heads)](
            out, *runs, sunk, HEADS=spec.num_heads, DIM=spec.head_dim, PAD=triton.next_power_of_2(spec.head_dim),
            SPLITS=config.splits, SINKS=sinks is not None, LOG2_E=LOG2_E, **chained(), num_warps=2,
        )  # fmt: skip


def _words(q: Tensor, cache: AnyCache, spec: GQA) -> tuple[Tensor, Tensor, int]:
    """Keys and values as they are read, and the kind of 8-bit numbers in them where they are read as words of two."""
    is_half = q.element_size() == 2 and spec.head_dim % 2 == 0 and spec.head_dim >= 32
    kind = kind_of_bytes(cache) if is_half else 0
    return (
        (cache.keys.view(torch.int16), cache.values.view(torch.int16), kind) if kind else (cache.keys, cache.values, 0)
    )
