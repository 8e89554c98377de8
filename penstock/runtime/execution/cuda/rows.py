"""What a CUDA runner keeps of its rows on the device beside their tokens and what they ask of their draws: block tables."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.rows import Rows
from penstock.runtime.models.kinds.cache import TableGroup
from penstock.runtime.ops.layout import BatchLayout


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
        groups: Sequence[TableGroup] = (TableGroup(None, 1),),
    ) -> None:
        super().__init__(num_rows, max_context, block_size, vocab_size, device, groups)
        self._device = device
        shape = self.all_tables.shape[1] // self.num_columns, num_rows, self.num_columns
        self._every_table = torch.full(shape, idle_block, dtype=torch.int32, device=device)
        self.device_tables, *self.further_tables = self._every_table.unbind()

    def place(self, step: int, chunks: Sequence[Chunk]) -> None:
        super().place(step, chunks)
        grown = [chunk.row for chunk in chunks if chunk.new_blocks or any(chunk.others)]
        if grown:
            tables = torch.from_numpy(self.tables(np.array(grown))).to(self._device, non_blocking=True)
            by_table = tables.view(len(grown), -1, self.num_columns).transpose(0, 1)
            self._every_table[:, self._upload(grown)] = by_table

    def through_others(self, layout: BatchLayout, rows: Tensor, row_of_token: Tensor) -> list[BatchLayout]:
        """The same tokens through the rows' further block tables."""
        size, positions = self.block_size, layout.positions
        return [
            replace(
                layout,
                slots=table[row_of_token, positions // size].long() * size + positions % size,
                block_tables=table.index_select(0, rows),
                derived={},
            )
            for table in self.further_tables
        ]

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
