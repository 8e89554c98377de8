"""Arguments of the operations of `ops.kv_write`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.spec import GQA, Rope
from penstock.runtime.ops.kv_write import (
    BlockParts,
    HeadNorms,
    empty_cache,
    gather_blocks,
    kv_write,
    place_qkv,
    scatter_blocks,
)
from penstock.runtime.ops.rope import angle_table
from tests.ops.examples import examples_of


@examples_of(kv_write)
def _write_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(4)
    kept = (None, None, torch.float8_e4m3fn, torch.int8)
    for dtype, cache_dtype in zip((torch.float32, torch.float16) * 2, kept):
        new = torch.randn((2, 5, 2, 16), generator=generator, device=device).to(dtype) * 3
        slots = torch.tensor([9, 10, 31, 0, 16], device=device)
        yield new[0], new[1], empty_cache((4, 8, 2, 16), cache_dtype or dtype, device), slots


@examples_of(place_qkv)
def _place_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(5)
    spec = GQA(6, 2, 16, Rope(16), 0.25)
    slots = torch.tensor([9, 10, 31, 0, 16], device=device)
    angles = angle_table(Rope(16), 64, device).at(torch.tensor([3, 4, 40, 0, 63], device=device))
    ones = torch.ones(96, device=device)
    for dtype in (torch.float32, torch.float16):
        for norms in (None, HeadNorms(ones[:16] * 2, ones[:16], 1e-6), HeadNorms(ones, ones[:32] * 3, 1e-6)):
            for turned in (angles, None):
                qkv = torch.randn((5, 160), generator=generator, device=device).to(dtype)
                yield qkv, spec, norms, turned, empty_cache((4, 8, 2, 16), dtype, device), slots
    for cache_dtype in (torch.float8_e4m3fn, torch.int8):
        qkv = torch.randn((5, 160), generator=generator, device=device) * 4
        yield qkv, spec, None, angles, empty_cache((4, 8, 2, 16), cache_dtype, device), slots


@examples_of(gather_blocks)
def _block_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(6)
    blocks = torch.tensor([3, 0, 5], device=device)
    for dtype, scales in ((torch.float16, False), (torch.uint8, True)):
        parts = tuple([torch.randint(0, 100, (6, 8, 2, 24), generator=generator, device=device) for _ in range(3)])
        parts = tuple([part.to(dtype) for part in parts])
        yield blocks, BlockParts((*parts, torch.ones((6, 8, 2), device=device)) if scales else parts)


@examples_of(scatter_blocks)
def _scatter_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for blocks, parts in _block_examples(device):
        yield blocks, parts, gather_blocks.definition(blocks.flip(0), parts)
