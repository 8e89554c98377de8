"""The table: for every part of a spec that mixes tokens, the layer that computes it and the cache it reads.

A new kind is a row here. A spec with a part that is in no row is refused before anything is loaded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.errors import ModelFileError
from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.kinds.bounded import BoundedAttention
from penstock.runtime.layers.kinds.latent import LatentAttention
from penstock.runtime.layers.kinds.recurrent import DeltaNet, ShortConvolution, StateCache, StateSpace
from penstock.runtime.layers.kinds.side_by_side import BothCaches, Mixers
from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.kinds.recurrent import Convolved, GatedDelta, Mamba2, ShortConv
from penstock.runtime.models.kinds.side_by_side import SideBySide
from penstock.runtime.models.spec import GQA, MLA, ModelSpec
from penstock.runtime.ops.kinds.bounded import BoundedCache
from penstock.runtime.ops.kv_write import empty_cache, zeros
from penstock.runtime.ops.layout import LatentCache

Pages = Any
"""Blocks of one layer's numbers: a tuple of tensors [num_blocks, block_size, ...]."""


class PartBuild(NamedTuple):
    layer: Callable[[Any, ModelSpec, int, torch.dtype], nn.Module]
    """Of a part, the model it is in, its layer's number and the numbers' type."""
    pages: Callable[[Any, int, int, torch.dtype, torch.device], Pages]
    """Of a part, a number of blocks and their size, a type and a device."""
    cache: Callable[[Any, Pages, int, torch.dtype, torch.device], Any] = lambda part, pages, *_: pages
    """What the layer finds in a step: pages, states, or both."""
    records: bool = True
    """A step of one token a sequence looks nothing up on the host."""


def _keys_and_values(
    part: GQA | SideBySide, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> Pages:
    return empty_cache((num_blocks, block_size, *part.cache_shape), dtype, device)


def _latents(part: MLA, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> Pages:
    """8-bit caches hold keys and values, not what both are made of."""
    kept = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.bfloat16
    return LatentCache(zeros((num_blocks, block_size, *part.cache_shape), kept, device))


def _no_pages(part: object, *_: object) -> Pages:
    raise RuntimeError(f"{type(part).__name__} keeps no blocks")


def _states(part: Convolved, pages: Pages, num_states: int, dtype: torch.dtype, device: torch.device) -> StateCache:
    shapes = (part.conv_size, part.width - 1), part.sum_shape
    return StateCache(*(zeros((num_states, *shape), torch.float32, device) for shape in shapes))


def _entries(part: Bounded, pages: Pages, num_states: int, dtype: torch.dtype, device: torch.device) -> BoundedCache:
    shape = num_states, part.capacity, part.attention.num_kv_heads
    keys, values = (zeros((*shape, part.attention.head_dim), torch.float32, device) for _ in range(2))
    return BoundedCache(keys, values, zeros(shape, torch.float32, device))


def _both(part: SideBySide, pages: Pages, *how: Any) -> BothCaches:
    return BothCaches(pages, _states(part.state_space, pages, *how))


PARTS: dict[type, PartBuild] = {
    SideBySide: PartBuild(Mixers, _keys_and_values, _both),
    Bounded: PartBuild(BoundedAttention, _no_pages, _entries, records=False),
    GatedDelta: PartBuild(DeltaNet, _no_pages, _states),
    Mamba2: PartBuild(StateSpace, _no_pages, _states),
    ShortConv: PartBuild(ShortConvolution, _no_pages, _states),
    GQA: PartBuild(Attention, _keys_and_values),
    MLA: PartBuild(LatentAttention, _latents),
}


def part_of(spec: ModelSpec, number: int) -> PartBuild:
    part = spec.layers[number].attention
    if type(part) not in PARTS:
        raise ModelFileError(
            f"layer {number} of {spec.architecture} keeps a {part.kind} cache for {type(part).__name__}, which nothing here "
            "computes; size it with penstock plan or penstock simulate, or serve another model"
        )
    return PARTS[type(part)]


def can_record(spec: ModelSpec) -> bool:
    """Decode steps of this model can be recorded, where a device does that."""
    return all(part_of(spec, number).records for number in range(len(spec.layers)))


def build_mixer(spec: ModelSpec, number: int, dtype: torch.dtype) -> nn.Module:
    """The sublayer that mixes tokens."""
    return part_of(spec, number).layer(spec.layers[number].attention, spec, number, dtype)
