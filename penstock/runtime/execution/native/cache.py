"""The KV cache of native steps: all layers of a block side by side.

Memory is taken by pages of up to two megabytes as blocks are first written. A cache for each layer, and one for its values,
would end in a page hardly used each; here there is one such page in all.
"""

import math

import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.native.arena import large_zeros
from penstock.runtime.models.spec import ModelSpec, only_gqa
from penstock.runtime.ops.layout import LayerCache, ScaledCache


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
        for number in range(0, 2 * layout.num_slots, 2):
            keys, values = numbers[:, number], numbers[:, number + 1]
            if scales is None:
                self.pages.append(LayerCache(keys, values))
            else:
                self.pages.append(ScaledCache(keys, values, scales[:, number], scales[:, number + 1]))
        self.layers = [self.pages[place[1]] for place in layout.places if place is not None]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return large_zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    except OSError as error:
        raise EngineError(
            f"no memory for {shape[0]} blocks of the KV cache ({error.strerror}); lower --num-blocks"
        ) from None
