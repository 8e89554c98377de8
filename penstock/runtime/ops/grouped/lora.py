"""What adapters add to a product: each token's own pair of thin matrices, found by the number of its adapter.

Matrices of all adapters lie in one memory, each adapter's in a run of its own; a small table says where those of one product
begin. Both stay where they are while adapters come and go, so a recorded step stays valid.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.moe import max_tiles
from penstock.runtime.ops.op import operation

RANK_STEP = 16
"""Ranks are rounded up to a multiple, with zeros."""
TILES = ((256, 8), (512, 16))
"""Up to so many tokens, tiles of so many."""
MOST_TILE = 64
MOST_PARTS = 3


class LoraBank(NamedTuple):
    """One product's thin matrices, of all adapters. Adapter 0 is none.

    A is [parts x rank, inputs], B [outputs, rank]: outputs come in parts, each with rows of its own in A.
    """

    numbers: Tensor
    """[adapters but 0, room]: all matrices of an adapter, one behind another."""
    places: Tensor
    """int32 [adapters, 4], `[:, number]` of those of all products: rank, where A and B begin (multiples of 16), whether factors
    count; rank 0 for no change."""
    factors: Tensor
    """float32 [adapters, outputs] that the plain product counts times, of DoRAs."""
    most_rank: int
    """The highest rank that an adapter may have."""
    number: int = 0
    """Which of the model's products it is."""


def is_even(sizes: Sequence[int]) -> bool:
    """Kernels take such parts."""
    return len(sizes) == 1 or (len(sizes) <= MOST_PARTS and all(size % RANK_STEP == 0 for size in sizes))


def lora_tile(num_tokens: int) -> int:
    """Tokens of one adapter that are computed together."""
    return next((tile for most, tile in TILES if num_tokens <= most), MOST_TILE)


class TokenTiles(NamedTuple):
    """Tokens in runs of one adapter each, up to a tile long, and room for more."""

    tokens: Tensor
    """int32 [tiles, tile]; -1 where a run is shorter."""
    slots: Tensor
    """int32 [tiles], -1 where there is no run."""
    places: Tensor
    """int32 [tiles, products, 4]: of each run's adapter, as `LoraBank` has them; zeros for none."""
    counts: Tensor
    """int32 [tiles], zeros: programs count there which of them is the last."""


@operation
def tile_tokens(slots: Tensor, places: Tensor) -> TokenTiles:
    """Of tokens with these adapters, in their order; once a step, for all products.

    `places` [adapters, products, 4] are all that `LoraBank`s have. Each adapter has room for one run more than its tokens fill.
    """
    tile, num_slots = lora_tile(len(slots)), len(places)
    tokens = torch.full((max_tiles(len(slots), num_slots, tile), tile), -1, dtype=torch.int32, device=slots.device)
    owners = torch.full((len(tokens),), -1, dtype=torch.int32, device=slots.device)
    num_before = 0
    for slot in range(num_slots):
        ours = torch.where(slots == slot)[0].int()
        for number, run in enumerate(torch.split(ours, tile) if len(ours) else ()):
            at = num_before // tile + slot + number
            tokens[at, : len(run)] = run
            owners[at] = slot
        num_before += len(ours)
    return TokenTiles(tokens, owners, places[owners.clamp(min=0).long()], torch.zeros_like(owners))


Product = Callable[[], Tensor]
"""The plain product W x and perhaps a bias, [tokens, outputs], made when it is called: kernels do something beside it."""


@operation
def add_lora(
    x: Tensor,
    product: Product,
    bias: Tensor | None,
    tiles: TokenTiles | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
) -> Tensor:
    """The product of x [tokens, inputs] with B (A x) of each token's adapter added.

    `tiles` are the tokens by adapter, for kernels.
    """
    y = product()
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
        b = bank.numbers[slot - 1, at_b : at_b + rank * y.shape[1]].view(-1, rank)
        shrunk = torch.split(x[at].float() @ a.float().t(), rank, 1)
        made = [part @ rows.t() for part, rows in zip(shrunk, torch.split(b.float(), list(sizes)), strict=True)]
        y[at] = (before + torch.cat(made, 1)).to(y.dtype)
    return y


@operation
def add_lora_gated(
    x: Tensor,
    product: Product,
    bias: Tensor | None,
    tiles: TokenTiles | None,
    slots: Tensor,
    bank: LoraBank,
    sizes: Sequence[int],
    activation: Activation,
) -> Tensor:
    """The same, of which the first half then gates the second. Outputs are one part or two halves."""
    return gate(add_lora.definition(x, product, bias, tiles, slots, bank, sizes), activation)
