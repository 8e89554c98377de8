"""From the joined q, k, v of a step to queries ready to attend, and keys and values written to the cache;
blocks of it as bytes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.layout import AnyCache, LayerCache, ScaledCache
from penstock.runtime.ops.norm import rms_norm
from penstock.runtime.ops.op import operation
from penstock.runtime.ops.rope import Angles, rotate

MOST_FLOAT = 448.0
"""The largest 8-bit float."""
MOST_WHOLE = 127.0
CACHE_LINE = 64
LEAST = 1e-12
"""A head smaller than this counts as this large, so that its scale is never zero."""


class HeadNorms(NamedTuple):
    """Weights of the norms of q and k: [head_dim] to norm each head, longer to norm all heads at once."""

    q: Tensor
    k: Tensor
    eps: float


def empty_cache(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> AnyCache:
    """Zeros, in the kind of cache that holds such numbers."""
    keys, values = (zeros(shape, dtype, device) for _ in range(2))
    if dtype != torch.int8:
        return LayerCache(keys, values)
    return ScaledCache(keys, values, *(zeros(shape[:-1], torch.float32, device) for _ in range(2)))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU memory is taken only as it is written: torch would write the zeros, numpy asks the system for them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    room = np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return torch.from_numpy(room[start : start + num_bytes]).view(dtype).view(shape)


@operation
def kv_write(keys: Tensor, values: Tensor, cache: AnyCache, slots: Tensor) -> None:
    """Writes keys and values [tokens, kv_heads, head_dim] to their slots."""
    new: tuple[Tensor, ...] = keys, values
    if isinstance(cache, ScaledCache):
        (keys, key_scales), (values, value_scales) = (_rounded(heads) for heads in new)
        new = keys, values, key_scales, value_scales
    elif cache.keys.dtype == torch.float8_e4m3fn:
        new = tuple(heads.float().clamp(-MOST_FLOAT, MOST_FLOAT).to(cache.keys.dtype) for heads in new)
    for part, heads in zip(cache, new):
        plain(part).flatten(0, 1).index_copy_(0, slots, plain(heads))


def _rounded(heads: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit whole numbers and their scales; a number that is not finite ruins its head's scale."""
    wide = heads.float()
    most = wide.abs().amax(-1).clamp(min=LEAST)
    return (wide * (MOST_WHOLE / most)[..., None]).round().nan_to_num().to(torch.int8), most / MOST_WHOLE


def plain(numbers: Tensor) -> Tensor:
    """8-bit floats as bytes: not every operation of torch moves them."""
    return numbers.view(torch.uint8) if numbers.dtype == torch.float8_e4m3fn else numbers


@operation
def place_qkv(
    qkv: Tensor, spec: GQA, norms: HeadNorms | None, angles: Angles | None, cache: AnyCache, slots: Tensor
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


@dataclass
class BlockParts:
    """Tensors [num_blocks, ...] that together hold blocks: those of all layers. What copies have to know is found once."""

    tensors: tuple[Tensor, ...]

    @cached_property
    def block_bytes(self) -> int:
        return sum(part.nbytes // part.shape[0] for part in self.tensors)

    @cached_property
    def word_count(self) -> int | None:
        """Words of four bytes that a block has in each part; None where parts differ in it, or lie apart."""
        sizes = {(part.nbytes // part.shape[0], part.is_contiguous()) for part in self.tensors}
        ((size, is_whole), *others) = sizes
        return size // 4 if is_whole and not others and size % 4 == 0 else None

    @cached_property
    def pointers(self) -> Tensor:
        return torch.tensor([part.data_ptr() for part in self.tensors], device=self.tensors[0].device)


@operation
def gather_blocks(blocks: Tensor, parts: BlockParts) -> Tensor:
    """[blocks, bytes]: what those blocks have in all parts [num_blocks, ...], one part after another."""
    chosen = [plain(part).index_select(0, blocks).contiguous() for part in parts.tensors]
    return torch.cat([part.view(torch.uint8).view(len(blocks), -1) for part in chosen], dim=1)


@operation
def scatter_blocks(blocks: Tensor, parts: BlockParts, rows: Tensor) -> None:
    """Writes what `gather_blocks` gave, here or elsewhere, to those blocks."""
    begin = 0
    for part in parts.tensors:
        size = part[0].numel() * part.element_size()
        own = rows[:, begin : begin + size].contiguous().view(plain(part).dtype)
        plain(part).index_copy_(0, blocks, own.view(len(blocks), *part.shape[1:]))
        begin += size
