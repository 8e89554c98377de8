"""From a step's chunks to the tensors a model reads."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.rows import Rows, spread
from penstock.runtime.ops.layout import BatchLayout


class Inputs(NamedTuple):
    token_ids: Tensor
    layout: BatchLayout
    begins: list[int]
    """First flattened token of each chunk."""


def make_inputs(chunks: list[Chunk], rows: Rows) -> Inputs:
    """The rows have taken in the chunks already, so every token is found in its row."""
    size = rows.block_size
    lengths = [chunk.length for chunk in chunks]
    contexts = [chunk.end for chunk in chunks]
    row_of_chunk = np.array([chunk.row for chunk in chunks])
    counts, ends = np.array(lengths), np.array(contexts)
    positions = spread(ends - counts, counts)
    row_of_token = np.repeat(row_of_chunk, counts)
    tables = rows.tables(row_of_chunk)[:, : -(-max(contexts) // size)]
    blocks = tables[np.repeat(np.arange(len(chunks)), counts), positions // size].astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    places = rows.upload(positions)
    layout = BatchLayout(
        positions=places,
        slots=rows.upload(blocks * size + positions % size),
        block_tables=torch.from_numpy(tables).to(places.device),
        query_starts=rows.upload(starts).int(),
        context_lengths=rows.upload(ends).int(),
        lengths=lengths,
        contexts=contexts,
    )
    token_ids = rows.tokens[rows.upload(row_of_token), places].long()
    return Inputs(token_ids, layout, starts[:-1].tolist())
