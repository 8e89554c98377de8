"""Attention of a step that is recorded for any chunks: the lists empty, chunks and tokens padded."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from penstock.ops.attention import attention
from penstock.ops.layout import BatchLayout

NAME = "paged attention, recorded"
PADDING_CHUNKS, PADDING_TOKENS = 2, 5


def padded_examples() -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Arguments as a recording would have them, and what the definition makes of those they stand for."""
    for number, (q, cache, layout, *rest) in enumerate(attention.examples(torch.device("cpu"))):
        if number % 3 == 0:
            truth = attention.definition(q, cache, layout, *rest)
            yield (pad(q, (0, 0, 0, 0, 0, PADDING_TOKENS)), cache, padded(layout), *rest), truth


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
