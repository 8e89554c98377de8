"""The KV cache of native steps: all layers of a block side by side.

Memory is taken by pages of up to two megabytes as blocks are first written. A cache for each layer, and one for its values,
would end in a page hardly used each; here there is one such page in all.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.native.arena import large_zeros
from penstock.runtime.models.spec import ModelSpec, only_gqa
from penstock.runtime.ops.layout import LayerCache, ScaledCache
from penstock.runtime.ops.quantized.packed import TILE


class Part(NamedTuple):
    """Keys, values or scales of all layers: [blocks, layers, ...], and the order of a block's dimensions that goes position
    by position, as every other runner has them."""

    numbers: Tensor
    order: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """Of one block and layer."""
        return self.numbers.shape[2:].numel() * self.numbers.element_size()

    def read(self, places: Tensor) -> Tensor:
        """[blocks, layers, bytes], by position."""
        own = self.numbers.index_select(0, places).permute(0, 1, *self.order).contiguous()
        return own.view(torch.uint8).flatten(2)

    def write(self, places: Tensor, rows: Tensor) -> None:
        shape = [self.numbers.shape[place] for place in self.order]
        own = rows.contiguous().view(self.numbers.dtype).view(*rows.shape[:2], *shape)
        back = [2 + self.order.index(place) for place in range(2, 2 + len(self.order))]
        self.numbers.index_copy_(0, places, own.permute(0, 1, *back))


class NativeCache(KVCache):
    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, *, frees: bool = False
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        attention = only_gqa(spec.layers[0].attention, "computed by native steps")
        layout = spec.cache_layout(frees=frees)
        shape = num_blocks, 2 * layout.num_slots, block_size, attention.num_kv_heads, attention.head_dim
        numbers = _zeros(shape, dtype)
        scales = _zeros(shape[:-1], torch.float32) if dtype == torch.int8 else None
        self.pages = []
        self._parts = _parts(numbers, scales)
        for number in range(0, 2 * layout.num_slots, 2):
            keys, values = numbers[:, number], numbers[:, number + 1]
            if scales is None:
                self.pages.append(LayerCache(keys, values))
            else:
                self.pages.append(ScaledCache(keys, values, scales[:, number], scales[:, number + 1]))
        self.layers = [self.pages[place[1]] for place in layout.places if place is not None]

    def gather(self, blocks: Sequence[int]) -> Tensor:
        parts = [part.read(torch.tensor(blocks)) for part in self._parts]
        return torch.cat(parts, dim=2).flatten(1)

    def scatter(self, blocks: Sequence[int], rows: Tensor) -> None:
        sizes = [part.block_bytes for part in self._parts]
        own = torch.split(rows.view(len(blocks), len(self.pages), -1), sizes, dim=2)
        for part, numbers in zip(self._parts, own):
            part.write(torch.tensor(blocks), numbers)


def _parts(numbers: Tensor, scales: Tensor | None) -> list[Part]:
    """Native steps have units of 16 keys: keys in words of as many numbers as four bytes hold, values in words of as many
    keys (`ops/cpu/native/abi.h`)."""
    num_blocks, num_layers, block_size, num_heads, dim = numbers.shape
    word = 4 // numbers.element_size()
    unit = num_blocks, num_layers // 2, 2, num_heads, block_size // TILE
    keys = numbers.view(*unit, dim // word, TILE, word)[:, :, 0]
    values = numbers.view(*unit, TILE // word, dim, word)[:, :, 1]
    parts = [Part(keys, (3, 5, 2, 4, 6)), Part(values, (3, 4, 6, 2, 5))]
    if scales is not None:
        parts += [Part(scales.view(*unit, TILE)[:, :, place], (3, 4, 2)) for place in range(2)]
    return parts


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return large_zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    except OSError as error:
        raise EngineError(
            f"no memory for {shape[0]} blocks of the KV cache ({error.strerror}); lower --num-blocks"
        ) from None
