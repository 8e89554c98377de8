"""The paged KV cache: for each layer, keys and values in blocks. Which block is whose is not known here."""

from collections.abc import Sequence

import torch

from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.kv_write import empty_cache
from penstock.runtime.ops.layout import AnyCache


class KVCache:
    """Blocks start as zeros: memory is taken as blocks are first written, and nothing stale can be read."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers: list[AnyCache] = []
        for layer in spec.layers:
            shape = (num_blocks, block_size, layer.grouped.num_kv_heads, layer.grouped.head_dim)
            self.layers.append(empty_cache(shape, dtype, device))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Duplicates blocks, (from, to)."""
        if not pairs:
            return
        sources, targets = torch.tensor(pairs, device=self.layers[0].keys.device).t()
        for layer in self.layers:
            for part in layer:
                numbers = part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part
                numbers.index_copy_(0, targets, numbers.index_select(0, sources))


CACHE_DTYPES: dict[str, torch.dtype | None] = {"auto": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""By what `--kv` says; None keeps the model's own."""


def bytes_per_kv_value(spec: ModelSpec, dtype: torch.dtype) -> float:
    """Bytes of a key or value number, its share of a scale included."""
    if dtype != torch.int8:
        return float(dtype.itemsize)
    num_values = sum(layer.attention.kv_values_per_token for layer in spec.layers)
    num_scales = sum(2 * layer.grouped.num_kv_heads for layer in spec.layers)
    return 1.0 + 4.0 * num_scales / num_values
