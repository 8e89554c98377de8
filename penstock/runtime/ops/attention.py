"""Attention over the paged KV cache, and over a text that is wholly in the step.

The definitions work chunk by chunk with the whole matrix of scores in float32: easy to trust, and the oracle of every
kernel.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.kv_write import empty_cache, kv_write
from penstock.runtime.ops.layout import AnyCache, BatchLayout, LayerCache, ScaledCache
from penstock.runtime.ops.op import operation


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    """Decodes, whole prompts and prompts behind a cached prefix, alone and mixed; borders around the block size."""
    generator = torch.Generator(device).manual_seed(6)
    shapes = [
        GQA(4, 4, 16, None, 0.25),
        GQA(6, 2, 16, None, 0.3, window=5),
        GQA(8, 1, 32, None, 0.2, logit_softcap=3.0),
        GQA(4, 2, 64, None, 0.125, window=9, sinks=True),
    ]
    batches = [
        ([1], [1]),
        ([1, 1, 1], [7, 8, 9]),
        ([17], [17]),
        ([3, 1, 8, 1], [20, 64, 8, 33]),
        ([1, 1, 5, 1], [2, 50, 12, 16]),
        ([5], [40]),
        ([3, 3, 3], [3, 33, 64]),
    ]
    for dtype in (torch.float32, torch.float16):
        for spec in shapes:
            for lengths, contexts in batches:
                layout = example_layout(lengths, contexts, 8, 40, generator)
                parts = torch.randn((2, 40, 8, spec.num_kv_heads, spec.head_dim), generator=generator, device=device)
                q = torch.randn((sum(lengths), spec.num_heads, spec.head_dim), generator=generator, device=device)
                sinks = torch.randn(spec.num_heads, generator=generator, device=device) if spec.sinks else None
                yield q.to(dtype), LayerCache(*parts.to(dtype)), layout, spec, sinks
    layout = example_layout([1, 1100], [9, 1100], 8, 280, generator)  # a prompt so long that a library may take it
    parts = torch.randn((2, 280, 8, 1, 16), generator=generator, device=device).half()
    q = torch.randn((1101, 2, 16), generator=generator, device=device).half()
    yield q, LayerCache(*parts), layout, GQA(2, 1, 16, None, 0.25), None
    layout = example_layout([1, 1100], [9, 13_500], 8, 3400, generator)  # so long a chunk behind so many keys, likewise
    for cache_dtype in (torch.float16, torch.float8_e4m3fn, torch.int8):
        q = torch.randn((1101, 2, 64), generator=generator, device=device).half()
        yield q, example_cache((3400, 8, 1, 64), cache_dtype, generator), layout, GQA(2, 1, 64, None, 0.125), None
    for cache_dtype in (torch.float8_e4m3fn, torch.int8):
        for lengths, contexts in (batches[1], batches[3], batches[6]):
            layout = example_layout(lengths, contexts, 8, 40, generator)
            q = torch.randn((sum(lengths), 6, 16), generator=generator, device=device)
            cache = example_cache((40, 8, 2, 16), cache_dtype, generator)
            yield q, cache, layout, shapes[1], None
            q = torch.randn((sum(lengths), 4, 64), generator=generator, device=device).half()
            sinks = torch.randn(4, generator=generator, device=device)
            yield q, example_cache((40, 8, 2, 64), cache_dtype, generator), layout, shapes[3], sinks


@operation(_examples)
def attention(q: Tensor, cache: AnyCache, layout: BatchLayout, spec: GQA, sinks: Tensor | None) -> Tensor:
    """Each query of q [tokens, heads, head_dim] sees the keys of its own sequence up to its own position."""
    outputs = []
    for queries, table, context in zip(torch.split(q, layout.lengths), layout.block_tables, layout.contexts):
        # Blocks behind the window may be another sequence's by now.
        low = 0 if spec.window is None else max(context - len(queries) - spec.window + 1, 0) // cache.block_size
        blocks = table[low : -(-context // cache.block_size)].long()
        end = context - low * cache.block_size
        keys, values = (part.flatten(0, 1)[:end] for part in read_blocks(cache, blocks))
        outputs.append(attend(queries, keys, values, _visible(len(queries), end, spec.window, q.device), spec, sinks))
    return torch.cat(outputs)


def _encoder_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(7)
    for dtype in (torch.float32, torch.float16):
        for lengths in ([1], [5, 12, 3, 6, 5], [31, 31, 31]):
            spec = GQA(4, 2, 16, None, 0.25, causal=False)
            tokens = sum(lengths)
            heads = torch.randn((tokens, 8, 16), generator=generator, device=device).to(dtype)
            yield *torch.split(heads, [4, 2, 2], dim=1), example_layout(lengths, lengths, 8, 40, generator), spec


@operation(_encoder_examples)
def encoder_attention(q: Tensor, k: Tensor, v: Tensor, layout: BatchLayout, spec: GQA) -> Tensor:
    """Whole texts, no cache: every token sees every token of its own text."""
    texts = zip(*(torch.split(part, layout.lengths) for part in (q, k, v)))
    return torch.cat([attend(queries, keys, values, None, spec, None) for queries, keys, values in texts])


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, spec: GQA, sinks: Tensor | None) -> Tensor:
    """Attention of q [queries, heads, head_dim] to k and v [keys, kv_heads, head_dim]; `visible` is [queries, keys]."""
    group = spec.num_heads // spec.num_kv_heads
    keys, values = (part.float().repeat_interleave(group, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
    if spec.logit_softcap is not None:
        scores = spec.logit_softcap * torch.tanh(scores / spec.logit_softcap)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, len(q), 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def read_blocks(cache: AnyCache, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of some blocks, [blocks, block_size, kv_heads, head_dim]."""
    keys, values = cache.keys[blocks], cache.values[blocks]
    if isinstance(cache, ScaledCache):
        scales = (cache.key_scales[blocks].unsqueeze(-1), cache.value_scales[blocks].unsqueeze(-1))
        return keys * scales[0], values * scales[1]
    return keys, values


def _visible(num_queries: int, context: int, window: int | None, device: torch.device) -> Tensor:
    query = torch.arange(context - num_queries, context, device=device)[:, None]
    key = torch.arange(context, device=device)[None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def example_cache(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> AnyCache:
    """Every slot written."""
    cache = empty_cache(shape, dtype, generator.device)
    num_slots = shape[0] * shape[1]
    new = torch.randn((2, num_slots, *shape[2:]), generator=generator, device=generator.device)
    new = new if dtype.itemsize == 1 else new.to(dtype)
    kv_write(new[0], new[1], cache, torch.arange(num_slots, device=generator.device))
    return cache


def example_layout(
    lengths: list[int], contexts: list[int], block_size: int, num_blocks: int, generator: torch.Generator
) -> BatchLayout:
    """Chunks whose sequences lie in scattered blocks, no block shared."""
    device = generator.device
    most = max(-(-context // block_size) for context in contexts)
    tables = torch.randperm(num_blocks, generator=generator, device=device)[: most * len(contexts)].view(-1, most)
    positions = [torch.arange(end - length, end, device=device) for length, end in zip(lengths, contexts)]
    slots = [table[place // block_size] * block_size + place % block_size for table, place in zip(tables, positions)]
    starts = torch.tensor((0, *lengths), device=device).cumsum(0).int()
    return BatchLayout(
        torch.cat(positions),
        torch.cat(slots),
        tables.int(),
        starts,
        torch.tensor(contexts, device=device).int(),
        lengths,
        contexts,
    )
