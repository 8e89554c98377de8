"""Copies are made of what was there before any of them."""

import torch

from penstock.runtime.kv_cache import KVCache
from tests.runtime.driving import tiny_spec


def test_copies_touch_their_targets_only() -> None:
    cache = KVCache(tiny_spec(), 6, 8, torch.bfloat16, torch.device("cpu"))
    for layer in cache.layers:
        for part in layer:
            assert part.shape == (6, 8, 2, 16)
            part.copy_(torch.randn(part.shape))
    before = [[part.clone() for part in layer] for layer in cache.layers]
    cache.copy([(0, 3), (3, 4), (5, 1)])
    cache.copy([])
    for layer, old in zip(cache.layers, before):
        for part, was in zip(layer, old):
            assert torch.equal(part, was[[0, 5, 2, 0, 3, 5]])
