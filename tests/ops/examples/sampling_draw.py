"""Arguments of the operations of `ops.sampling.draw`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.ops.sampling.draw import (
    Penalties,
    SamplingTensors,
    draw,
    likeliest,
    penalize,
)
from tests.ops.examples import examples_of


@examples_of(penalize)
def _penalty_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(12)
    logits = torch.randn((4, 50), generator=generator, device=device) * 3
    history = torch.randint(0, 50, (4, 12), generator=generator, device=device)
    history[:, 7:] = history[:, 3:8]
    prompts, lengths = (torch.tensor(values, device=device) for values in ([5, 3, 8, 1], [12, 3, 9, 7]))
    for penalties in ([1.3, 1.0, 0.5, 1.0], [0.0, 1.5, -1.0, 0.7], [0.0, 0.4, 0.3, -0.6]):
        numbers = torch.tensor(penalties, device=device)
        yield logits.clone(), history, prompts, lengths, Penalties(numbers.clamp(min=0.5), numbers, numbers.flip(0))


@examples_of(draw)
def _draw_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(13)

    def column(*values: float) -> Tensor:
        return torch.tensor(values, device=device)

    for vocab_size in (11, 3000):
        for spread in (0.3, 4.0):
            logits = torch.randn((10, vocab_size), generator=generator, device=device) * spread
            logits[5] = logits[5].round()  # ties
            logits[6, 3:] = -torch.inf
            sampling = SamplingTensors(
                column(0.0, 1.0, 0.7, 1.3, 1.0, 1.0, 1.0, 2.0, 1e-40, 1.0),
                column(0, 0, 5, 0, 0, 3, 0, 2000, 0, 300).long(),
                column(1.0, 1.0, 1.0, 0.6, 0.99, 0.9, 0.95, 0.999, 0.9, 0.9),
                column(0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.01, 0.5, 0.0),
                torch.rand(10, generator=generator, device=device, dtype=torch.float64),
            )
            yield logits, sampling
            yield logits, sampling._replace(uniform=torch.full_like(sampling.uniform, 1 - 2.0**-53))


@examples_of(likeliest)
def _likeliest_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(14)
    for vocab_size in (11, 1024, 3001):
        logits = torch.randn((7, vocab_size), generator=generator, device=device)
        logits[1] = logits[1].round()  # ties
        logits[2], logits[3, -1], logits[4, 1:] = -torch.inf, 9.0, -torch.inf
        yield (logits,)
