"""Arguments of the operations of `ops.moe`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.models.spec import GatedMLP, MoE
from penstock.runtime.ops.moe import Experts, group_pairs, mix_experts, route, route_by_groups
from tests.ops.examples import examples_of


@examples_of(route)
def _route_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(10)
    for normalize in (False, True):
        spec = MoE(8, 3, GatedMLP(16, "silu"), normalize)
        yield torch.randn((9, 8), generator=generator, device=device), spec


@examples_of(route_by_groups)
def _best_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(12)
    offsets = torch.randn(8, generator=generator, device=device)
    scores = torch.randn((9, 8), generator=generator, device=device)
    yield scores, offsets, MoE(8, 3, GatedMLP(16, "silu"), True, scores="sigmoid", num_groups=4, num_active_groups=2)
    yield scores, None, MoE(8, 3, GatedMLP(16, "silu"), False, scale=2.5, num_groups=2, num_active_groups=1)


@examples_of(group_pairs)
def _group_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(16)
    for shape, num_experts, tile in (((1, 2), 6, 16), ((37, 8), 128, 16), ((600, 1), 100, 64), ((5000, 1), 12, 16)):
        chosen = torch.randint(0, num_experts, shape, generator=generator, device=device)
        chosen[len(chosen) // 2 :] = num_experts - 1
        yield chosen, num_experts, tile


@examples_of(mix_experts)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(11)
    sizes = ((1, False), (2, True), (7, True), (40, False), (60, True), (200, False))
    for dtype in (torch.float32, torch.float16):
        for tokens, has_bias in sizes if dtype == torch.float16 else sizes[:4]:
            spec = MoE(6, 2, GatedMLP(32, "swiglu_clamped" if has_bias else "silu", has_bias), True)

            def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
                return (torch.randn(shape, generator=generator, device=device) * 0.3).to(dtype)

            biases = (normal(6, 64), normal(6, 24)) if has_bias else (None, None)
            weights, chosen = route(torch.randn((tokens, 6), generator=generator, device=device), spec)
            yield normal(tokens, 24), weights, chosen, Experts(normal(6, 64, 24), normal(6, 24, 32), *biases), spec
