"""Drawing from the whole vocabulary: temperature and nothing else, as most requests ask.

The same draw as `sampling.draw` gives without filters, with its random number made in the same place.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.runtime.ops.op import operation
from penstock.runtime.ops.sampling.draw import invert, scale, uniform


class DrawKeys(NamedTuple):
    """What a row's random number depends on, int64 [rows] each."""

    seed: Tensor
    choice: Tensor
    position: Tensor


NOT_DRAWN = -1
"""Stands for the token of a row whose scores are not finite."""


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


@operation(_examples)
def draw_whole(logits: Tensor, temperature: Tensor, keys: DrawKeys) -> Tensor:
    """One token id, int64, for each row of scores [rows, vocabulary], of any float; NOT_DRAWN where a score is not finite."""
    logits = logits.float()
    scaled = scale(logits, temperature)
    least = torch.full_like(temperature, -torch.inf)
    drawn = torch.where(temperature == 0, logits.argmax(-1), invert(scaled, least, uniform(*keys)))
    return torch.where(torch.isfinite(logits.sum(-1)), drawn, NOT_DRAWN)
