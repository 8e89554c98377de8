"""Arguments of the operations of `ops.sampling.whole`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.ops.sampling.whole import DrawKeys, draw_whole
from tests.ops.examples import examples_of


@examples_of(draw_whole)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(14)
    for num_rows, vocab_size in ((1, 300), (6, 5000), (3, 20011)):
        logits = torch.randn((num_rows, vocab_size), generator=generator, device=device) * 3
        temperature = torch.tensor([0.0, 1.0, 0.6, 1.7, 1.0, 0.0][:num_rows], device=device)
        numbers = torch.arange(num_rows, device=device)
        keys = DrawKeys(numbers * 7919 - 3, numbers % 2, numbers + 40)
        yield logits, temperature, keys
        yield logits.half(), temperature, keys
        ruined = logits.clone()
        ruined[-1, 17] = torch.nan
        yield ruined, temperature, DrawKeys(numbers, numbers, numbers)
