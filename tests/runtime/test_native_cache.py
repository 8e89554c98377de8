"""All layers of a block stand side by side: nothing else differs from a cache for each layer."""

import pytest
import torch

from penstock.errors import EngineError
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.native.cache import NativeCache
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.ops.layout import AnyCache, BatchLayout, LayerCache, ScaledCache
from tests.runtime.driving import tiny_spec
from tests.runtime.test_native import CPU, SPECS, twins

TABLE = torch.tensor([[3, 0, 2]], dtype=torch.int32)


def parts(layers: list[AnyCache]) -> list[torch.Tensor]:
    return [part for layer in layers for part in layer]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_it_has_the_shapes_of_a_cache_for_each_layer_and_starts_as_zeros(dtype: torch.dtype) -> None:
    mine, theirs = NativeCache(tiny_spec(), 6, 16, dtype), KVCache(tiny_spec(), 6, 16, dtype, CPU)
    assert [type(layer) for layer in mine.layers] == [type(layer) for layer in theirs.layers]
    assert type(mine.layers[0]) is (ScaledCache if dtype == torch.int8 else LayerCache)
    for part, other in zip(parts(mine.layers), parts(theirs.layers), strict=True):
        assert (part.shape, part.dtype) == (other.shape, other.dtype)
        assert not part.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_parts_do_not_overlap_and_copies_touch_their_targets_only(dtype: torch.dtype) -> None:
    cache = NativeCache(tiny_spec(), 6, 16, dtype)
    for part in parts(cache.layers):
        part.copy_(torch.randn(part.shape) * 9)
    before = [part.clone() for part in parts(cache.layers)]
    cache.copy([(0, 3), (3, 4), (5, 1)])
    for part, was in zip(parts(cache.layers), before):
        assert torch.equal(part, was[[0, 5, 2, 0, 3, 5]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@torch.inference_mode()
def test_a_step_gives_the_same_bits_over_both(dtype: torch.dtype) -> None:
    _, native = twins(SPECS["plain"])
    spec = native.spec
    results = []
    for cache in (NativeCache(spec, 4, 16, dtype), KVCache(spec, 4, 16, dtype, CPU)):
        hidden = []
        for start, end in ((0, 30), (30, 31), (31, 40)):
            positions = torch.arange(start, end)
            slots = TABLE[0].long()[positions // 16] * 16 + positions % 16
            starts, contexts = torch.tensor([0, end - start]).int(), torch.tensor([end]).int()
            layout = BatchLayout(positions, slots, TABLE, starts, contexts, [end - start], [end])
            angles = Rotations(spec, 64, CPU).at(positions)
            hidden.append(native(positions + 5, Step(layout, angles, cache.layers)).clone())
        results.append((torch.cat(hidden), parts(cache.layers)))
    (mine, my_parts), (theirs, their_parts) = results
    assert torch.equal(mine, theirs)
    assert all(torch.equal(part, other) for part, other in zip(my_parts, their_parts, strict=True))
    assert my_parts[0].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("block_size", [16, 32])
@torch.inference_mode()
def test_records_are_in_the_order_of_every_other_runner(dtype: torch.dtype, block_size: int) -> None:
    """What native and plain torch steps leave of one text reads alike, and each can lay down what the other gave."""
    plain, native = twins(SPECS["plain"])
    spec, num_tokens = native.spec, 2 * block_size
    positions, table = torch.arange(num_tokens), torch.tensor([[2, 0]], dtype=torch.int32)
    slots = table[0].long()[positions // block_size] * block_size + positions % block_size
    starts, contexts = torch.tensor([0, num_tokens]).int(), torch.tensor([num_tokens]).int()
    layout = BatchLayout(positions, slots, table, starts, contexts, [num_tokens], [num_tokens])
    angles = Rotations(spec, 64, CPU).at(positions)
    mine, theirs = NativeCache(spec, 3, block_size, dtype), KVCache(spec, 3, block_size, dtype, CPU)
    exact = theirs if dtype == torch.int8 else KVCache(spec, 3, block_size, torch.float32, CPU)
    for model, cache in ((native, mine), (plain, exact)):
        model(positions + 5, Step(layout, angles, cache.layers))
    for part, numbers in zip(parts(theirs.layers), parts(exact.layers), strict=True):
        part.copy_(numbers)
    own, other = mine.read([2, 0]), theirs.read([2, 0])
    assert mine.block_bytes == theirs.block_bytes == len(own[0])
    both = torch.stack([torch.frombuffer(bytearray(b"".join(read)), dtype=dtype).float() for read in (own, other)])
    assert torch.corrcoef(both)[0, 1] > 0.9
    mine.write([1, 2], other)
    theirs.write([0, 1], own)
    assert (mine.read([1, 2]), theirs.read([0, 1])) == (other, own)
    assert mine.read([0]) == own[1:]


def test_a_cache_whose_parts_disagree_is_refused() -> None:
    _, native = twins(SPECS["plain"])
    mixed = [
        NativeCache(native.spec, 4, 16, torch.bfloat16).layers[0],
        KVCache(native.spec, 4, 16, torch.bfloat16, CPU).layers[1],
    ]
    with pytest.raises(EngineError, match="native step needs"):
        native._bind(mixed)


def test_more_blocks_than_the_system_promises_are_refused_with_the_way_out() -> None:
    with pytest.raises(EngineError, match="lower --num-blocks"):
        NativeCache(tiny_spec(), 1 << 48, 16, torch.bfloat16)
