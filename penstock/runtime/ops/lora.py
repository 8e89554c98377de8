"""What adapters add to a product: each token's own pair of thin matrices, found by the number of its adapter."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.ops.moe import Groups, group_pairs
from penstock.runtime.ops.op import operation

LORA_TILE = 16
"""Tokens of one adapter that are computed together."""


def group_tokens(slots: Tensor, num_slots: int) -> Groups:
    """Tokens in the order of their adapters, in runs of up to a tile; once a step, for all matrices."""
    return group_pairs(slots[:, None].long(), num_slots, LORA_TILE)


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(34)
    for dtype in (torch.float32, torch.float16):
        for tokens, columns, sizes, rank in ((1, 64, (48,), 8), (9, 96, (64, 32, 32), 16), (70, 160, (128, 128), 32)):

            def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
                return (torch.randn(shape, generator=generator, device=device) * 0.2).to(dtype)

            slots = torch.randint(0, 4, (tokens,), generator=generator, device=device).int()
            slots[-1] = 3
            a, b = normal(4, len(sizes) * rank, columns), normal(4, sum(sizes), rank)
            groups = group_tokens(slots, 4)
            yield normal(tokens, sum(sizes)), normal(tokens, columns), groups, slots, a, b, sizes


@operation(_examples)
def add_lora(
    y: Tensor, x: Tensor, groups: Groups | None, slots: Tensor, a: Tensor, b: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Adds to y [tokens, outputs], in place, B (A x) of each token's adapter; adapter 0 is none.

    `a` is [adapters, parts x rank, inputs], `b` [adapters, outputs, rank]: outputs come in parts of `sizes`, each with rows of
    its own in `a`. `groups` are the tokens by adapter, for kernels.
    """
    rank = b.shape[2]
    for slot in torch.unique(slots).tolist():
        if slot == 0:
            continue
        at = torch.where(slots == slot)[0]
        shrunk = x[at].float() @ a[slot].float().t()
        made, begin = [], 0
        for part, size in enumerate(sizes):
            weights = b[slot, begin : begin + size].float()
            made.append(shrunk[:, part * rank : (part + 1) * rank] @ weights.t())
            begin += size
        y[at] = (y[at].float() + torch.cat(made, 1)).to(y.dtype)
    return y
