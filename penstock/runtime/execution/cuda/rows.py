"""What a CUDA runner keeps of its rows on the device beside their tokens and what they ask of their draws: block tables."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.rows import Rows


class DeviceRows(Rows):
    """A free row has all its blocks in `idle_block`."""

    def __init__(
        self,
        num_rows: int,
        max_context: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        idle_block: int,
    ) -> None:
        super().__init__(num_rows, max_context, block_size, vocab_size, device)
        self._device = device
        shape = self.all_tables.shape
        self.device_tables = torch.full(shape, idle_block, dtype=torch.int32, device=device)

    def place(self, step: int, chunks: Sequence[Chunk]) -> None:
        super().place(step, chunks)
        grown = [chunk.row for chunk in chunks if chunk.new_blocks]
        if grown:
            tables = torch.from_numpy(self.tables(np.array(grown)))
            self.device_tables[self._upload(grown)] = tables.to(self._device, non_blocking=True)

    def _write(self, chunks: Sequence[Chunk]) -> None:
        """Drafts go to the device with what else a step that checks them reads, or by `write_drafts`."""
        super()._write([chunk for chunk in chunks if not is_check(chunk)])

    def write_drafts(self, chunks: Sequence[Chunk]) -> None:
        """For steps that find every token in its row."""
        super()._write([chunk for chunk in chunks if is_check(chunk)])

    def _upload(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values).to(self._device, non_blocking=True)


def is_check(chunk: Chunk) -> bool:
    """A token that the row holds, and drafts after it."""
    return chunk.num_drafts > 0 and chunk.num_drafts == len(chunk.token_ids) == chunk.length - 1
