"""Arguments of the operations of `ops.attention`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import attention, encoder_attention
from penstock.runtime.ops.kv_write import empty_cache, kv_write
from penstock.runtime.ops.layout import AnyCache, BatchLayout, LayerCache
from tests.ops.examples import examples_of


@examples_of(attention)
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


@examples_of(encoder_attention)
def _encoder_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(7)
    for dtype in (torch.float32, torch.float16):
        for lengths in ([1], [5, 12, 3, 6, 5], [31, 31, 31]):
            spec = GQA(4, 2, 16, None, 0.25, causal=False)
            tokens = sum(lengths)
            heads = torch.randn((tokens, 8, 16), generator=generator, device=device).to(dtype)
            yield *torch.split(heads, [4, 2, 2], dim=1), example_layout(lengths, lengths, 8, 40, generator), spec


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
