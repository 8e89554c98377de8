"""Native attention equals the definition over any chunks, blocks and groupings, and keeps what is stale out."""

import ctypes
import dataclasses

import pytest
import torch

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import attention
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.cpu.library import KERNELS
from penstock.runtime.ops.layout import AnyCache, BatchLayout, LayerCache, ScaledCache
from tests.ops.cpu.test_product import opened
from tests.ops.examples.attention import example_layout

SPECS = [
    GQA(4, 4, 32, None, 0.2),
    GQA(9, 3, 64, None, 0.125),
    GQA(8, 1, 64, None, 0.125, window=5),
    GQA(4, 2, 96, None, 0.1, window=300),
    GQA(6, 2, 128, None, 0.09, logit_softcap=3.0),
    GQA(4, 1, 256, None, 0.0625, window=17),
]
UNTILED = [name for name in KERNELS if not name.startswith("amx")]
"""Tiles round weights that meet values of 8 bits by what all rows beside them see."""
NUM_BLOCKS = 100
BATCHES = [
    ((1,), (1,)),
    ((1, 1, 1), (15, 16, 17)),
    ((40,), (40,)),
    ((3, 1, 8, 1), (20, 64, 8, 33)),
    ((1, 1, 5), (257, 511, 300)),
    ((30, 2), (290, 258)),
    ((1,) * 9, (1, 15, 16, 17, 33, 64, 100, 130, 176)),
]


def run(kernels: str, spec: GQA, qkv: torch.Tensor, cache: AnyCache, layout: BatchLayout) -> torch.Tensor:
    """Writes keys and values of the step to a native cache and attends."""
    library = opened(kernels)
    layer = native.NativeLayer(
        keys=cache.keys.data_ptr(),
        values=cache.values.data_ptr(),
        key_scales=cache.key_scales.data_ptr() if isinstance(cache, ScaledCache) else None,
        value_scales=cache.value_scales.data_ptr() if isinstance(cache, ScaledCache) else None,
        window=spec.window or 0,
        rotation=-1,
        scale=spec.scale,
        softcap=spec.logit_softcap or 0.0,
    )
    model = native.NativeModel(
        layers=ctypes.pointer(layer),
        num_layers=1,
        hidden_size=32,
        mlp_width=32,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=cache.block_size,
    )
    step = native.NativeStep(
        slots=layout.slots.data_ptr(),
        block_tables=layout.block_tables.data_ptr(),
        query_starts=layout.query_starts.data_ptr(),
        contexts=layout.context_lengths.data_ptr(),
        num_tokens=len(layout.slots),
        num_chunks=len(layout.lengths),
        table_stride=layout.block_tables.stride(0),
    )
    return library.attend(model, step, qkv).view(-1, spec.num_heads, spec.head_dim)


def cache_of(spec: GQA, block_size: int, filling: float) -> LayerCache:
    shape = (2, NUM_BLOCKS, block_size, spec.num_kv_heads, spec.head_dim)
    return LayerCache(*torch.full(shape, filling, dtype=torch.bfloat16))


def rounded_cache(spec: GQA, block_size: int, filling: float) -> ScaledCache:
    shape = (2, NUM_BLOCKS, block_size, spec.num_kv_heads)
    numbers = torch.full((*shape, spec.head_dim), 77, dtype=torch.int8)
    return ScaledCache(*numbers, *torch.full(shape, filling))


def rounded(heads: torch.Tensor) -> torch.Tensor:
    """Heads as a cache of whole numbers gives them back."""
    scales = heads.abs().amax(-1, keepdim=True) / 127
    return (heads / scales).round() * scales


def whole(layout: BatchLayout, block_size: int) -> BatchLayout:
    """The same sequences with all their tokens in the step."""
    contexts = list(layout.contexts)
    places = [torch.arange(context) for context in contexts]
    tables = layout.block_tables.long()
    slots = [table[at // block_size] * block_size + at % block_size for table, at in zip(tables, places)]
    starts = torch.tensor((0, *contexts)).cumsum(0).int()
    return BatchLayout(
        torch.cat(places), torch.cat(slots), layout.block_tables, starts, layout.context_lengths, contexts, contexts
    )


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.num_heads}/{spec.num_kv_heads}x{spec.head_dim}")
def test_equals_the_definition(spec: GQA, kernels: str, block_size: int, kv: str) -> None:
    """The native cache starts full of what is not a number, as a sequence gone wrong may have left it."""
    generator = torch.Generator().manual_seed(11)
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    for lengths, contexts in BATCHES:
        layout = example_layout(list(lengths), list(contexts), block_size, NUM_BLOCKS, generator)
        everything = whole(layout, block_size)
        qkv = torch.randn((sum(contexts), width), generator=generator)
        kept = rounded if kv == "int8" else torch.Tensor.contiguous
        cache = (rounded_cache if kv == "int8" else cache_of)(spec, block_size, torch.nan)
        plain = cache_of(spec, block_size, 0.0)
        run(kernels, spec, qkv.clone(), cache, everything)
        begins = everything.query_starts.tolist()
        picked = torch.cat([torch.arange(b + c - n, b + c) for n, c, b in zip(lengths, contexts, begins)])
        mine = run(kernels, spec, qkv[picked].clone(), cache, layout)

        heads = qkv.view(len(qkv), -1, spec.head_dim)
        heads = torch.cat((heads[:, : spec.num_heads], kept(heads[:, spec.num_heads :])), dim=1).bfloat16()
        keys, values = heads[:, spec.num_heads :].split(spec.num_kv_heads, dim=1)
        plain.keys.flatten(0, 1)[everything.slots] = keys
        plain.values.flatten(0, 1)[everything.slots] = values
        queries = heads[picked, : spec.num_heads].float()
        theirs = attention.definition(queries, plain, layout, spec, None)
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)


def part_of(layout: BatchLayout, chunk: int) -> BatchLayout:
    """One chunk by itself."""
    one, begins = slice(chunk, chunk + 1), layout.query_starts.tolist()
    tokens = slice(begins[chunk], begins[chunk + 1])
    return BatchLayout(
        layout.positions[tokens],
        layout.slots[tokens],
        layout.block_tables[one].contiguous(),
        torch.tensor((0, layout.lengths[chunk])).int(),
        layout.context_lengths[one],
        layout.lengths[one],
        layout.contexts[one],
    )


def numbers_of(spec: GQA, kv: str, num_blocks: int, generator: torch.Generator) -> AnyCache:
    numbers = torch.randn((2, num_blocks, 16, spec.num_kv_heads, spec.head_dim), generator=generator)
    if kv == "bf16":
        return LayerCache(*numbers.bfloat16())
    scales = torch.rand((2, num_blocks, 16, spec.num_kv_heads), generator=generator) / 50
    return ScaledCache(*(numbers * 40).to(torch.int8), *scales)


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.num_heads}/{spec.num_kv_heads}x{spec.head_dim}")
def test_many_beside_change_no_bit(spec: GQA, kernels: str, kv: str) -> None:
    """A token among many meets all kv heads at once, alone one after another."""
    generator = torch.Generator().manual_seed(13)
    contexts = [1, 15, 16, 17, 33, 64, 255, 257, 300, 513]
    layout = example_layout([1] * len(contexts), contexts, 16, 400, generator)
    cache = numbers_of(spec, kv, 400, generator)
    qkv = torch.randn((len(contexts), (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim), generator=generator)
    together = run(kernels, spec, qkv.clone(), cache, layout)
    for chunk, mine in enumerate(together):
        alone = run(kernels, spec, qkv[chunk : chunk + 1].clone(), cache, part_of(layout, chunk))
        assert torch.equal(mine, alone[0]), chunk


@pytest.mark.parametrize(("kernels", "kv"), [*((one, "bf16") for one in KERNELS), *((one, "int8") for one in UNTILED)])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.num_heads}/{spec.num_kv_heads}x{spec.head_dim}")
def test_a_prompt_in_pieces_changes_no_bit(spec: GQA, kernels: str, kv: str) -> None:
    """What many rows of queries make together, few make alone: whole, cut anywhere, and by few tokens, of which each number
    is a loop of its own to the compiler."""
    generator = torch.Generator().manual_seed(14)
    context, begin = 330, 250
    tables = torch.randperm(400, generator=generator)[: -(-context // 16)].int()[None]
    cache = numbers_of(spec, kv, 400, generator)
    qkv = torch.randn((context, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim), generator=generator)

    def attended(low: int, high: int) -> torch.Tensor:
        places = torch.arange(low, high)
        slots = tables[0].long()[places // 16] * 16 + places % 16
        starts, length = torch.tensor((0, high - low)).int(), (high - low,)
        ends = torch.tensor([high]).int()
        layout = BatchLayout(places, slots, tables, starts, ends, length, (high,))
        return run(kernels, spec, qkv[low:high].clone(), cache, layout)

    attended(0, begin)
    whole = attended(begin, context)
    few = [(low, low + count) for count in range(1, 12) for low in range(begin, 300, count)]
    for low, high in ((begin, 257), (257, 273), (273, context - 2), *few, (context - 1, context)):
        assert torch.equal(attended(low, high), whole[low - begin : high - begin]), (low, high)


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.num_heads}/{spec.num_kv_heads}x{spec.head_dim}")
def test_a_shared_beginning_changes_no_bit(spec: GQA, kernels: str, kv: str) -> None:
    """Sequences that begin with the same blocks, some further than others, and a prompt among them."""
    generator = torch.Generator().manual_seed(12)
    block_size, contexts = 16, [300, 560, 561, 33, 270, 600, 599, 290, 40, 522]
    lengths = [7 if context == 40 else 1 for context in contexts]
    layout = example_layout(lengths, contexts, block_size, 400, generator)
    tables = layout.block_tables
    tables[1:, :16] = tables[0, :16]  # as far as 256 positions are the same for all
    tables[[2, 5, 6], :32] = tables[1, :32]
    places = [tables[i, (c - n) // block_size : -(-c // block_size)] for i, (n, c) in enumerate(zip(lengths, contexts))]
    fresh = 399
    for place in places:  # what is written is nobody else's
        for index in range(len(place)):
            place[index], fresh = fresh, fresh - 1
    slots = [
        tables[i].long()[at // block_size] * block_size + at % block_size
        for i, at in enumerate(layout.positions.split(lengths))
    ]
    layout = dataclasses.replace(layout, slots=torch.cat(slots))
    cache = numbers_of(spec, kv, 400, generator)
    qkv = torch.randn((sum(lengths), (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim), generator=generator)
    together = run(kernels, spec, qkv.clone(), cache, layout).split(lengths)
    for chunk, (mine, own) in enumerate(zip(together, qkv.split(lengths))):
        assert torch.equal(mine, run(kernels, spec, own.clone(), cache, part_of(layout, chunk))), chunk
