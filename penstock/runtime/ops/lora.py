"""What adapters add to a product: each token's own pair of thin matrices, found by the number of its adapter.

Matrices of all adapters lie in one memory, each adapter's in a run of its own; a small table says where those of one product
begin. Both stay where they are while adapters come and go, so a recorded step stays valid.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.moe import Groups, group_pairs
from penstock.runtime.ops.op import operation

RANK_STEP = 16
"""Ranks are rounded up to a multiple, with zeros."""
MANY_TOKENS = 512
MOST_PARTS = 3


class LoraBank(NamedTuple):
    """One product's thin matrices, of all adapters. Adapter 0 is none.

    A is [parts x rank, inputs], B [rank, outputs]: outputs come in parts, each with rows of its own in A.
    """

    numbers: Tensor
    """[adapters but 0, room]: all matrices of an adapter, one behind another."""
    places: Tensor
    """int32 [adapters, 4]: rank, where A and B begin (multiples of 16), whether factors count; rank 0 for no change."""
    factors: Tensor
    """float32 [adapters, outputs] that the plain product counts times, of DoRAs."""
    most_rank: int
    """The highest rank that an adapter may have."""


def is_even(sizes: Sequence[int]) -> bool:
    """Kernels take such parts."""
    return len(sizes) == 1 or (len(sizes) <= MOST_PARTS and all(size % RANK_STEP == 0 for size in sizes))


def lora_tile(num_tokens: int) -> int:
    """Tokens of one adapter that are computed together."""
    return 16 if num_tokens <= MANY_TOKENS else 64


def group_tokens(slots: Tensor, num_slots: int) -> Groups:
    """Tokens in the order of their adapters, in runs of up to a tile; once a step, for all products."""
    return group_pairs(slots[:, None].long(), num_slots, lora_tile(len(slots)))


def _banks(
    device: torch.device, generator: torch.Generator, columns: int, sizes: Sequence[int], dtype: torch.dtype
) -> LoraBank:
    """Adapters of ranks 16 and 32, one that leaves the product alone, one that scales it."""
    outputs, parts = sum(sizes), len(sizes)
    ranks = (0, 32, 0, 16)
    room = 16 + 32 * (parts * columns + outputs)
    numbers = (torch.randn((3, room), generator=generator, device=device) * 0.2).to(dtype)
    places = [[rank, 16, 16 + rank * parts * columns, slot == 3] for slot, rank in enumerate(ranks)]
    factors = torch.rand((4, outputs), generator=generator, device=device) + 0.5
    return LoraBank(numbers, torch.tensor(places, dtype=torch.int32, device=device), factors, 32)


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(34)
    for dtype in (torch.float32, torch.float16):
        for tokens, columns, sizes, has_bias in (
            (1, 64, (48,), True), (9, 96, (64, 32, 32), False), (70, 160, (128, 128), True),
        ):  # fmt: skip

            def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
                return (torch.randn(shape, generator=generator, device=device) * 0.2).to(dtype)

            slots = torch.randint(0, 4, (tokens,), generator=generator, device=device).int()
            slots[-1] = 3
            bank = _banks(device, generator, columns, sizes, dtype)
            bias = normal(sum(sizes)) if has_bias else None
            yield normal(tokens, sum(sizes)), normal(tokens, columns), bias, group_tokens(slots, 4), slots, bank, sizes


def _gated_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for *rest, sizes in _examples(device):
        if len(sizes) < 3:
            yield *rest, sizes, "silu" if len(sizes) == 2 else "gelu_tanh"


@operation(_examples)
def add_lora(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    groups: Groups | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
) -> Tensor:
    """Adds to y [tokens, outputs], in place, B (A x) of each token's adapter; y is W x and perhaps a bias.

    `groups` are the tokens by adapter, for kernels.
    """
    for slot in torch.unique(slots).tolist():
        rank, at_a, at_b, is_scaled = bank.places[slot].tolist()
        if slot == 0 or rank == 0:
            continue
        at = torch.where(slots == slot)[0]
        before = y[at].float()
        if is_scaled:
            plain = before if bias is None else before - bias.float()
            before = plain * bank.factors[slot] if bias is None else plain * bank.factors[slot] + bias.float()
        a = bank.numbers[slot - 1, at_a : at_a + rank * len(sizes) * x.shape[1]].view(-1, x.shape[1])
        b = bank.numbers[slot - 1, at_b : at_b + rank * y.shape[1]].view(rank, -1)
        shrunk = torch.split(x[at].float() @ a.float().t(), rank, 1)
        made = [part @ weights for part, weights in zip(shrunk, torch.split(b.float(), list(sizes), 1), strict=True)]
        y[at] = (before + torch.cat(made, 1)).to(y.dtype)
    return y


@operation(_gated_examples)
def add_lora_gated(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    groups: Groups | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> Tensor:
    """The same, of which the first half then gates the second. Outputs are one part or two halves."""
    return gate(add_lora.definition(y.clone(), x, bias, groups, slots, bank, sizes), activation)
