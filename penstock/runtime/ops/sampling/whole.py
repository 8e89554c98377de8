"""Drawing from the whole vocabulary: temperature and nothing else, as most requests ask.

The same draw as `sampling.draw` gives without filters, with its random number made in the same place.
"""

from typing import NamedTuple

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


@operation
def draw_whole(logits: Tensor, temperature: Tensor, keys: DrawKeys) -> Tensor:
    """One token id, int64, for each row of scores [rows, vocabulary], of any float; NOT_DRAWN where a score is not finite."""
    logits = logits.float()
    scaled = scale(logits, temperature)
    least = torch.full_like(temperature, -torch.inf)
    drawn = torch.where(temperature == 0, logits.argmax(-1), invert(scaled, least, uniform(*keys)))
    return torch.where(torch.isfinite(logits.sum(-1)), drawn, NOT_DRAWN)
