"""Attention of recorded steps: of any chunks, the lists empty, chunks and tokens padded; of a few drafts a sequence."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from penstock.runtime.execution.cuda.verify_graphs import verify_layout
from penstock.runtime.ops.attention import attention
from penstock.runtime.ops.layout import BatchLayout
from penstock.runtime.ops.op import Op
from penstock.runtime.ops.rows import Decodes
from tests.ops.examples import arguments_of

NAME = "paged attention, recorded"
PADDING_CHUNKS, PADDING_TOKENS = 2, 5


def padded_examples(op: Op[..., Any] = attention) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, list[int]]]:
    """Arguments as a recording would have them, what the definition makes of those they stand for, and where these are."""
    for number, (q, cache, layout, *rest) in enumerate(arguments_of(op)):
        if number % 3 == 0:
            truth = op.definition(q, cache, layout, *rest)
            yield (pad(q, (0, 0, 0, 0, 0, PADDING_TOKENS)), cache, padded(layout), *rest), truth, [*range(len(truth))]
        if len(layout.lengths) == (4 if op is attention else 3) and number % 2:
            yield checked(op, q, cache, layout, *rest)


def checked(
    op: Op[..., Any], q: torch.Tensor, cache: Any, layout: BatchLayout, *rest: Any
) -> tuple[tuple[Any, ...], torch.Tensor, list[int]]:
    """Chunks of up to as many queries as the longest."""
    width, count = max(layout.lengths), len(layout.lengths)
    places = [number * width + offset for number, length in enumerate(layout.lengths) for offset in range(length)]
    queries = torch.zeros((count * width, *q.shape[1:]), dtype=q.dtype)
    queries[places] = q
    positions, slots = torch.zeros((2, count * width), dtype=torch.int64)
    positions[places], slots[places] = layout.positions, layout.slots
    tables = layout.block_tables.repeat_interleave(width, 0)
    decodes = Decodes(torch.zeros_like(slots), slots, (positions + 1).int(), tables)
    truth = op.definition(q, cache, layout, *rest)
    return (queries, cache, verify_layout(positions, decodes, width), *rest), truth, places


def padded(layout: BatchLayout) -> BatchLayout:
    return replace(
        layout,
        block_tables=pad(layout.block_tables, (0, 0, 0, PADDING_CHUNKS)),
        query_starts=pad(layout.query_starts, (0, PADDING_CHUNKS), value=int(layout.query_starts[-1])),
        context_lengths=pad(layout.context_lengths, (0, PADDING_CHUNKS)),
        lengths=[],
        contexts=[],
        derived={},
    )
