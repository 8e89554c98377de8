"""Attention over latents: what is cached of a token is one vector that serves as key and value of every head.

Queries come multiplied with what would make keys of latents (absorbed), so a latent is read once for all heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.models.spec import MLA
from penstock.runtime.ops.layout import BatchLayout, LatentCache
from penstock.runtime.ops.norm import rms_norm
from penstock.runtime.ops.op import operation
from penstock.runtime.ops.rope import Angles


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


@operation
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


@operation
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
