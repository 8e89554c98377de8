"""Attention over latents: what is cached of a token is one vector that serves as key and value of every head.

Queries come multiplied with what would make keys of latents (absorbed), so a latent is read once for all heads.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.spec import MLA, Rope
from penstock.runtime.ops.attention import example_layout
from penstock.runtime.ops.layout import BatchLayout, LatentCache
from penstock.runtime.ops.norm import rms_norm
from penstock.runtime.ops.op import operation
from penstock.runtime.ops.rope import Angles, angle_table


class LatentPlaces(NamedTuple):
    """Where a step's tokens go, and what makes them ready for it."""

    weight: Tensor
    """Of the latents' norm."""
    eps: float
    angles: Angles
    slots: Tensor


def rotate_neighbours(x: Tensor, angles: Angles) -> Tensor:
    """Turns the pairs (2d, 2d + 1) of x [tokens, heads, dim]; firsts come out before seconds, for queries and keys alike."""
    cosine, sine = angles.cosine.unsqueeze(1), angles.sine.unsqueeze(1)
    first, second = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


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


@operation(_place_examples)
def place_latents(
    q: Tensor, made: Tensor, queries: Tensor, places: LatentPlaces, cache: LatentCache, spec: MLA
) -> None:
    """Norms the latents of `made` [tokens, kv_rank + rope], turns the keys behind them, and writes both to their slots; turns
    the end of `queries` [tokens, heads, plain + rope] and lays it down as that of `q` [tokens, heads, kv_rank + rope]."""
    latents, keys = made.tensor_split([spec.kv_rank], dim=-1)
    turned = rotate_neighbours(keys.unsqueeze(1), places.angles).squeeze(1)
    held = torch.cat((rms_norm(latents.contiguous(), places.weight, places.eps), turned), dim=-1)
    cache.latents.flatten(0, 1).index_copy_(0, places.slots, held.to(cache.latents.dtype))
    q[..., spec.kv_rank :] = rotate_neighbours(queries[..., spec.plain_dim :], places.angles)


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


@operation(_examples)
def latent_attention(q: Tensor, cache: LatentCache, layout: BatchLayout, spec: MLA) -> Tensor:
    """For absorbed queries [tokens, heads, kv_rank + rope], the weighted latents [tokens, heads, kv_rank] that they see."""
    outputs = []
    for queries, table, context in zip(torch.split(q, layout.lengths), layout.block_tables, layout.contexts):
        blocks = table[: -(-context // cache.block_size)].long()
        held = cache.latents[blocks].flatten(0, 1)[:context].float()
        scores = torch.einsum("qhd,kd->hqk", queries.float(), held) * spec.scale
        place = torch.arange(context, device=q.device)
        seen = place[None, :] <= place[context - len(queries) :, None]
        weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
        outputs.append(torch.einsum("hqk,kd->qhd", weights, held[:, : spec.kv_rank]).to(q.dtype))
    return torch.cat(outputs)
