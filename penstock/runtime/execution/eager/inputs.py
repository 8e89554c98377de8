"""From a step's chunks to the tensors a model reads."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.rows import Rows, spread
from penstock.runtime.ops.layout import BatchLayout, StateLayout


class Inputs(NamedTuple):
    token_ids: Tensor
    layout: BatchLayout
    begins: list[int]
    """First flattened token of each chunk."""
    others: tuple[BatchLayout, ...]
    """The same tokens through the rows' further block tables."""
    states: StateLayout


def make_inputs(chunks: list[Chunk], rows: Rows) -> Inputs:
    """The rows have taken in the chunks already, so every token is found in its row."""
    size = rows.block_size
    lengths = [chunk.length for chunk in chunks]
    contexts = [chunk.end for chunk in chunks]
    row_of_chunk = np.array([chunk.row for chunk in chunks])
    counts, ends = np.array(lengths), np.array(contexts)
    positions = spread(ends - counts, counts)
    row_of_token = np.repeat(row_of_chunk, counts)
    num_blocks, chunk_of_token = -(-max(contexts) // size), np.repeat(np.arange(len(chunks)), counts)
    all_tables = rows.tables(row_of_chunk)
    starts = np.concatenate(([0], np.cumsum(counts)))
    places = rows.upload(positions)
    query_starts, context_lengths = rows.upload(starts).int(), rows.upload(ends).int()
    layouts = []
    for begin in range(0, all_tables.shape[1], rows.num_columns):
        tables = all_tables[:, begin : begin + num_blocks]
        blocks = tables[chunk_of_token, positions // size].astype(np.int64)
        layouts.append(
            BatchLayout(
                positions=places,
                slots=rows.upload(blocks * size + positions % size),
                block_tables=rows.upload(tables),
                query_starts=query_starts,
                context_lengths=context_lengths,
                lengths=lengths,
                contexts=contexts,
            )
        )
    token_ids = rows.tokens[rows.upload(row_of_token), places].long()
    read, written = rows.states[row_of_chunk].T.copy()
    states = StateLayout(rows.upload(read), rows.upload(written), (read.tolist(), written.tolist()))
    return Inputs(token_ids, layouts[0], starts[:-1].tolist(), tuple(layouts[1:]), states)
