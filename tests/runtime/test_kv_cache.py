"""Copies are made of what was there before any of them, and keys kept in 8 bits are nearly what they were."""

import pytest
import torch

from penstock.runtime.execution.kv_cache import KVCache, bytes_per_kv_value
from penstock.runtime.ops.attention import read_blocks
from penstock.runtime.ops.kv_write import kv_write
from tests.runtime.driving import tiny_spec

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_copies_touch_their_targets_only(dtype: torch.dtype) -> None:
    cache = KVCache(tiny_spec(), 6, 8, dtype, CPU)
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (6, 8, 2, 16)
        for part in layer:
            part.copy_(torch.randn(part.shape) * 9)
    before = [[part.clone() for part in layer] for layer in cache.layers]
    cache.copy([(0, 3), (3, 4), (5, 1)])
    cache.copy([])
    for layer, old in zip(cache.layers, before):
        for part, was in zip(layer, old):
            assert torch.equal(part.float(), was[[0, 5, 2, 0, 3, 5]].float())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float8_e4m3fn, 0.04), (torch.int8, 0.01)])
def test_keys_in_eight_bits_are_nearly_what_they_were(dtype: torch.dtype, most: float) -> None:
    torch.manual_seed(0)
    (layer, _) = KVCache(tiny_spec(), 6, 8, dtype, CPU).layers
    keys, values = torch.randn((2, 10, 2, 16)) * torch.tensor([1.0, 7.0]).view(2, 1, 1, 1)
    kv_write(keys, values, layer, torch.arange(5, 15))
    for read, written in zip(read_blocks(layer, torch.tensor([0, 1])), (keys, values)):
        back = read.flatten(0, 1)[5:15].float()
        assert (back - written).norm() < most * written.norm()


def test_numbers_too_large_for_eight_bits_stay_finite_and_ruined_ones_stay_ruined() -> None:
    heads = torch.ones((3, 2, 16))
    heads[0, 0, 3], heads[1, 0, 3] = 1e6, torch.nan
    for dtype in (torch.float8_e4m3fn, torch.int8):
        (layer, _) = KVCache(tiny_spec(), 1, 8, dtype, CPU).layers
        kv_write(heads, heads, layer, torch.arange(3))
        keys, _ = read_blocks(layer, torch.tensor([0]))
        is_finite = torch.isfinite(keys.float()).all(-1)[0, :3]
        assert is_finite.tolist() == [[True, True], [False, True], [True, True]]


def test_a_scale_is_shared_by_the_numbers_of_a_head() -> None:
    assert bytes_per_kv_value(tiny_spec(), torch.bfloat16) == 2.0
    assert bytes_per_kv_value(tiny_spec(), torch.float8_e4m3fn) == 1.0
    assert bytes_per_kv_value(tiny_spec(), torch.int8) == 1.0 + 4 / 16
