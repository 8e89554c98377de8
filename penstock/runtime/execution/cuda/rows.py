"""What a CUDA runner keeps of its rows on the device beside their tokens and what they ask of their draws: block tables."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.rows import Rows, spread
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
        idle_state: int | None = None,
    ) -> None:
        super().__init__(num_rows, max_context, block_size, vocab_size, device, groups)
        self.idle_state = idle_state
        """The slot that padding leaves its state in; none where a model has no states."""
        shape = self.all_tables.shape[1] // self.num_columns, num_rows, self.num_columns
        self._every_table = torch.full(shape, idle_block, dtype=torch.int32, device=device)
        self.device_tables, *self.further_tables = self._every_table.unbind()
        self._new_blocks: list[tuple[int, int, Sequence[int]]] = []
        """(row, first column, ids) that the step being placed brings."""

    def place(self, step: int, chunks: Sequence[Chunk]) -> None:
        self._new_blocks = []
        super().place(step, chunks)
        if self._new_blocks:
            self._send_blocks(self._new_blocks)

    def _put_blocks(self, row: int, begin: int, ids: Sequence[int]) -> None:
        super()._put_blocks(row, begin, ids)
        self._new_blocks.append((row, begin, ids))

    def _send_blocks(self, runs: list[tuple[int, int, Sequence[int]]]) -> None:
        lengths = np.array([len(ids) for _, _, ids in runs])
        columns = spread(np.array([begin for _, begin, _ in runs]), lengths)
        tables, columns = np.divmod(columns, self.num_columns)
        rows = np.repeat(np.array([row for row, _, _ in runs]), lengths)
        ids = np.fromiter(chain.from_iterable(ids for _, _, ids in runs), dtype=np.int64, count=lengths.sum())
        num_rows = self._every_table.shape[1]
        places, blocks = self.upload(np.stack(((tables * num_rows + rows) * self.num_columns + columns, ids)))
        self._every_table.view(-1)[places] = blocks.int()

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


def is_check(chunk: Chunk) -> bool:
    """A token that the row holds, and drafts after it."""
    return chunk.num_drafts > 0 and chunk.num_drafts == len(chunk.token_ids) == chunk.length - 1
