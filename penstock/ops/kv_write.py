"""From the joined q, k, v of a step to queries ready to attend and keys and values laid down in the cache."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.models.spec import GQA, Rope
from penstock.ops.layout import LayerCache
from penstock.ops.norm import rms_norm
from penstock.ops.op import operation
from penstock.ops.rope import Angles, angle_table, rotate


class HeadNorms(NamedTuple):
    """Weights of the norms of q and k: [head_dim] to norm each head, longer to norm all heads at once."""

    q: Tensor
    k: Tensor
    eps: float


def _write_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(4)
    for dtype in (torch.float32, torch.float16):
        cache = LayerCache(*torch.zeros((2, 4, 8, 2, 16), dtype=dtype, device=device))
        new = torch.randn((2, 5, 2, 16), generator=generator, device=device).to(dtype)
        yield new[0], new[1], cache, torch.tensor([9, 10, 31, 0, 16], device=device)


@operation(_write_examples)
def kv_write(keys: Tensor, values: Tensor, cache: LayerCache, slots: Tensor) -> None:
    """Lays keys and values [tokens, kv_heads, head_dim] down at their slots."""
    cache.keys.flatten(0, 1).index_copy_(0, slots, keys)
    cache.values.flatten(0, 1).index_copy_(0, slots, values)


def _place_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(5)
    spec = GQA(6, 2, 16, Rope(16), 0.25)
    slots = torch.tensor([9, 10, 31, 0, 16], device=device)
    angles = angle_table(Rope(16), 64, device).at(torch.tensor([3, 4, 40, 0, 63], device=device))
    ones = torch.ones(96, device=device)
    for dtype in (torch.float32, torch.float16):
        for norms in (None, HeadNorms(ones[:16] * 2, ones[:16], 1e-6), HeadNorms(ones, ones[:32] * 3, 1e-6)):
            for turned in (angles, None):
                qkv = torch.randn((5, 160), generator=generator, device=device).to(dtype)
                yield qkv, spec, norms, turned, LayerCache(*qkv.new_zeros((2, 4, 8, 2, 16))), slots


@operation(_place_examples)
def place_qkv(
    qkv: Tensor, spec: GQA, norms: HeadNorms | None, angles: Angles | None, cache: LayerCache, slots: Tensor
) -> Tensor:
    """Norms and rotates q and k, writes k and v to the cache, returns q [tokens, heads, head_dim]."""
    q, k, v = split_heads(qkv, spec, norms, angles)
    kv_write(k, v, cache, slots)
    return q


def split_heads(
    qkv: Tensor, spec: GQA, norms: HeadNorms | None, angles: Angles | None
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as [tokens, heads, head_dim], normed and rotated."""
    heads = qkv.view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
    qk, v = heads[:, : -spec.num_kv_heads], heads[:, -spec.num_kv_heads :]
    if norms is not None:
        q = _norm_heads(qk[:, : spec.num_heads], norms.q, norms.eps)
        qk = torch.cat((q, _norm_heads(qk[:, spec.num_heads :], norms.k, norms.eps)), dim=1)
    if angles is not None:
        qk = rotate(qk, angles)
    return qk[:, : spec.num_heads], qk[:, spec.num_heads :], v


def _norm_heads(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    if weight.shape[0] == heads.shape[-1]:
        return rms_norm(heads, weight, eps)
    return rms_norm(heads.flatten(1), weight, eps).view_as(heads)
