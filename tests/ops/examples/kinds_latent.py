"""Arguments of the operations of `ops.kinds.latent`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.spec import MLA, Rope
from penstock.runtime.ops.kinds.latent import LatentPlaces, latent_attention, place_latents
from penstock.runtime.ops.layout import LatentCache
from penstock.runtime.ops.rope import angle_table
from tests.ops.examples import examples_of
from tests.ops.examples.attention import example_layout


@examples_of(place_latents)
def _place_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(22)
    slots = torch.tensor([9, 10, 31, 0, 16], device=device)
    places = torch.tensor([3, 4, 40, 0, 63], device=device)
    for dtype in (torch.float32, torch.float16):
        for heads, rank, rope in ((16, 64, 16), (3, 48, 24)):
            spec = MLA(heads, rank, 16, 16, Rope(rope), 0.11)
            shapes = ((5, heads, rank + rope), (5, rank + rope), (5, heads, 16 + rope), (4, 8, rank + rope))
            drawn = [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]
            weight = torch.rand(rank, generator=generator, device=device) + 0.5
            angles = angle_table(spec.rope, 64, device).at(places)
            yield *drawn[:3], LatentPlaces(weight, 1e-5, angles, slots), LatentCache(drawn[3]), spec


@examples_of(latent_attention)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(21)
    batches = [([1], [1]), ([1, 1, 1], [7, 8, 65]), ([3, 1, 8], [20, 64, 8])]
    for dtype in (torch.float32, torch.float16):
        for heads, rank, rope in ((16, 64, 16), (3, 32, 16)):
            spec = MLA(heads, rank, 16, 16, Rope(rope), 0.11)
            for lengths, contexts in batches:
                layout = example_layout(lengths, contexts, 8, 40, generator)
                q = torch.randn((sum(lengths), heads, rank + rope), generator=generator, device=device).to(dtype)
                held = torch.randn((40, 8, rank + rope), generator=generator, device=device).to(dtype)
                yield q, LatentCache(held), layout, spec
