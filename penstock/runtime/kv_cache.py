"""The paged KV cache: for each layer, keys and values in blocks. Which block is whose is not known here."""

from collections.abc import Sequence

import torch

from penstock.models.spec import ModelSpec
from penstock.ops.layout import LayerCache


class KVCache:
    """Blocks start as zeros: memory is taken as blocks are first written, and nothing stale can be read."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers: list[LayerCache] = []
        for layer in spec.layers:
            shape = (num_blocks, block_size, layer.attention.num_kv_heads, layer.attention.head_dim)
            keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            self.layers.append(LayerCache(keys, values))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Duplicates blocks, (from, to)."""
        if not pairs:
            return
        sources, targets = torch.tensor(pairs, device=self.layers[0].keys.device).t()
        for layer in self.layers:
            for part in layer:
                part.index_copy_(0, targets, part.index_select(0, sources))
