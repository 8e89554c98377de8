"""Arguments of the operations of `ops.grouped.lora`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.ops.grouped.lora import (
    LoraBank,
    add_lora,
    add_lora_gated,
    tile_tokens,
)
from tests.ops.examples import examples_of


@examples_of(tile_tokens)
def _tile_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(33)
    for count, num_slots in ((1, 4), (9, 3), (70, 5), (600, 9)):
        slots = torch.randint(0, num_slots, (count,), generator=generator, device=device).int()
        slots[count // 2 :] = num_slots - 1
        places = torch.randint(1, 99, (num_slots, 70, 4), generator=generator, device=device).int()
        places[0] = 0
        yield slots, places


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


@examples_of(add_lora)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(34)
    for dtype in (torch.float32, torch.float16):
        for tokens, columns, sizes, has_bias in (
            (1, 64, (48,), True), (9, 1056, (64, 32, 32), False), (70, 160, (128, 128), True), (530, 64, (32,), True),
        ):  # fmt: skip

            def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
                return (torch.randn(shape, generator=generator, device=device) * 0.2).to(dtype)

            slots = torch.randint(0, 4, (tokens,), generator=generator, device=device).int()
            slots[-1] = 3
            bank = _banks(device, generator, columns, sizes, dtype)
            bias = normal(sum(sizes)) if has_bias else None
            product = normal(tokens, sum(sizes)).clone
            yield normal(tokens, columns), product, bias, tile_tokens(slots, bank.places[:, None]), slots, bank, sizes


@examples_of(add_lora_gated)
def _gated_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for *rest, sizes in _examples(device):
        if len(sizes) < 3:
            yield *rest, sizes, "silu" if len(sizes) == 2 else "gelu_tanh"
