"""The cache: for each layer, what it remembers, in blocks or in states. Which block is whose is not known here."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from penstock.runtime.layers.kinds.parts import part_of
from penstock.runtime.models.spec import GQA, ModelSpec
from penstock.runtime.ops.kv_write import BlockParts, gather_blocks, plain, scatter_blocks


class KVCache:
    """Blocks start as zeros: memory is taken as blocks are first written, and nothing stale can be read.

    Layers of different groups may share a tensor: their blocks have different ids. With `frees` they lie as
    `ModelSpec.cache_layout` says, else every layer has a tensor of its own.
    """

    def __init__(
        self,
        spec: ModelSpec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        frees: bool = False,
        num_states: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers: list[Any] = []
        pages: dict[int, Any] = {}
        for number, place in enumerate(spec.cache_layout(frees=frees).places):
            attention, make = spec.layers[number].attention, part_of(spec, number)
            if place is not None and place[1] not in pages:
                pages[place[1]] = make.pages(attention, num_blocks, block_size, dtype, device)
            paged = None if place is None else pages[place[1]]
            self.layers.append(make.cache(attention, paged, num_states, dtype, device))
        self.pages = list(pages.values())

    @cached_property
    def _in_blocks(self) -> BlockParts:
        return BlockParts(tuple([part for page in self.pages for part in page]))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Duplicates blocks, (from, to)."""
        if not pairs:
            return
        sources, targets = torch.tensor(pairs, device=self.pages[0][0].device).t()
        for page in self.pages:
            for part in page:
                numbers = plain(part)
                numbers.index_copy_(0, targets, numbers.index_select(0, sources))

    @property
    def block_bytes(self) -> int:
        """What one block holds, all layers."""
        return self._in_blocks.block_bytes

    def read(self, blocks: Sequence[int]) -> list[bytes]:
        """Contents of blocks, each all layers' one after another. Waits for what is under way."""
        return [row.tobytes() for row in self.gather(blocks).cpu().numpy()]

    def write(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> None:
        """Lay contents down that `read` has given, here or in another process."""
        rows = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).view(len(blocks), -1)
        self.scatter(blocks, rows.to(self.pages[0][0].device))

    def gather(self, blocks: Sequence[int]) -> torch.Tensor:
        """[blocks, bytes of a block]. Waits for nothing."""
        return gather_blocks(self._places(blocks), self._in_blocks)

    def scatter(self, blocks: Sequence[int], rows: torch.Tensor) -> None:
        scatter_blocks(self._places(blocks), self._in_blocks, rows)

    def _places(self, blocks: Sequence[int]) -> torch.Tensor:
        """From pinned memory: from any other a copy would wait for the steps before it."""
        device = self.pages[0][0].device
        return torch.tensor(blocks, pin_memory=device.type == "cuda").to(device, non_blocking=True)


CACHE_DTYPES: dict[str, torch.dtype | None] = {"auto": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""By what `--kv` says; None keeps the model's own."""


def bytes_per_kv_value(spec: ModelSpec, dtype: torch.dtype) -> float:
    """Bytes of a key or value number, its share of a scale included."""
    if dtype != torch.int8:
        return float(dtype.itemsize)
    num_values = sum(layer.attention.kv_values_per_token for layer in spec.layers)
    num_scales = sum(2 * layer.attention.num_kv_heads for layer in spec.layers if isinstance(layer.attention, GQA))
    return 1.0 + 4.0 * num_scales / max(num_values, 1)
