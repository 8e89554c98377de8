"""Steps that check drafts: what a graph of them is told, against what the host works out for the same chunks."""

import random
from typing import cast

import numpy as np
import pytest
import torch

from penstock.runtime.core.batch import Arrival, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.execution.cuda.graphs import GraphParts, padded_size
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.cuda.verify_graphs import (
    COMMON_SIZES,
    MAX_TOKENS,
    USES_TO_RECORD,
    VerifyGraphs,
    describe,
    verify_layout,
)
from penstock.runtime.execution.eager.inputs import make_inputs
from penstock.runtime.models.kinds.cache import TableGroup
from penstock.runtime.ops.rows import gather_checks

BLOCK_SIZE, NUM_ROWS, MAX_CONTEXT, IDLE_BLOCK = 4, 6, 64, 99
CPU = torch.device("cpu")


def arriving(row: int, length: int, numbers: random.Random) -> Chunk:
    blocks = tuple(numbers.randrange(90) for _ in range(MAX_CONTEXT // BLOCK_SIZE))
    tokens = tuple(numbers.randrange(1000) for _ in range(length))
    return Chunk(row, 0, length, tokens, blocks, True, Arrival(SamplingParams(), 0, length, (), ""))


def checks(seed: int) -> tuple[DeviceRows, list[Chunk]]:
    """Rows on a device that have their prompts, and a step that checks up to four drafts of each."""
    numbers = random.Random(seed)
    rows = DeviceRows(NUM_ROWS + 1, MAX_CONTEXT, BLOCK_SIZE, 1000, CPU, IDLE_BLOCK)
    chunks = [arriving(row, numbers.randint(1, 30), numbers) for row in numbers.sample(range(NUM_ROWS), 4)]
    rows.place(0, chunks)
    rows.grow(0, chunks)
    later = []
    for chunk in chunks:
        drafts = tuple(numbers.randrange(1000) for _ in range(numbers.randint(0, 4)))
        later.append(Chunk(chunk.row, chunk.end, 1 + len(drafts), drafts, (), True, None, len(drafts)))
    return rows, later


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", [(4, 5), (24, 1)])
def test_what_a_graph_is_told_is_what_the_host_works_out(seed: int, shape: tuple[int, int]) -> None:
    rows, chunks = checks(seed)
    rows.place(1, chunks)
    assert not any(rows.tokens[chunk.row, chunk.start + 1 :].any() for chunk in chunks), "drafts travel with the step"
    masks = [*range(sum(chunk.length for chunk in chunks))]
    described, order = describe(chunks, masks, shape, NUM_ROWS)
    where, positions, asked, drafts = torch.tensor(described)
    decodes = gather_checks(rows.tokens, rows.device_tables, where, positions, drafts, BLOCK_SIZE)
    layout = verify_layout(positions, decodes, shape[1])
    rows.write_drafts(chunks)
    truth = make_inputs(chunks, rows)
    places = [order.index(number) for number in masks]
    assert torch.equal(decodes.token_ids[places], truth.token_ids)
    assert torch.equal(positions[places], truth.layout.positions)
    assert torch.equal(layout.slots[places], truth.layout.slots)
    assert asked[places].tolist() == masks
    padding = [place for place in range(len(positions)) if place not in places]
    assert (layout.slots[padding] == IDLE_BLOCK * BLOCK_SIZE).all()
    assert (asked[padding] == -1).all()
    if shape[1] > 1:
        firsts = [places[begin] // shape[1] for begin in truth.begins]
        assert torch.equal(layout.context_lengths[firsts], truth.layout.context_lengths)


@pytest.mark.parametrize("seed", range(12))
def test_a_step_is_padded_by_little_or_taken_apart(seed: int) -> None:
    numbers = random.Random(seed)
    widths = [numbers.choice((1, 1, 2, 5, 17)) for _ in range(numbers.randint(1, 100))]
    chunks = [Chunk(row, 9, 1 + n, (7,) * n, (), True, None, n) for row, n in enumerate(width - 1 for width in widths)]
    shape = VerifyGraphs.shape_of(chunks)
    if shape is None:
        assert sum(widths) > MAX_TOKENS
        return
    size, width = shape
    assert size * width <= max(2 * sum(widths) + 16, padded_size(sum(widths)))
    assert width == 1 or (size >= len(chunks) and width >= max(widths))
    assert size * width >= sum(widths)


def test_a_shape_is_recorded_once_it_is_frequent_and_until_then_computed_as_a_common_one() -> None:
    graphs = VerifyGraphs(cast(GraphParts, None))
    chunks = [Chunk(row, 9, 5, (7,) * 4, (), True, None, 4) for row in range(12)]
    assert [graphs.choose(chunks) for _ in range(USES_TO_RECORD)] == [(128, 1)] * USES_TO_RECORD
    assert graphs.choose(chunks) == VerifyGraphs.shape_of(chunks) == (12, 5)
    assert max(COMMON_SIZES) == MAX_TOKENS, "whatever can be recorded fits a common size"


def test_chunks_of_prompts_are_not_such_a_step() -> None:
    prompt = Chunk(0, 0, 5, (1, 2, 3, 4, 5), (), True, None)
    assert VerifyGraphs.shape_of([prompt, Chunk(1, 9, 2, (7,), (), True, None, 1)]) is None


def test_the_device_has_the_block_tables_that_the_host_has() -> None:
    """Of every group, over steps that bring a few blocks each, one of which is launched again."""
    numbers = random.Random(5)
    groups = TableGroup(None, 1), TableGroup(8, 2)
    rows = DeviceRows(NUM_ROWS + 1, MAX_CONTEXT, BLOCK_SIZE, 1000, CPU, IDLE_BLOCK, groups)
    for step in range(6):
        chunks = []
        for row in numbers.sample(range(NUM_ROWS), 3):
            ids = tuple(numbers.randrange(90) for _ in range(2))
            further = (tuple(numbers.randrange(90) for _ in range(4)),)
            arrival = None if rows.num_blocks[row] else Arrival(SamplingParams(), 0, 1, (), "")
            chunks.append(Chunk(row, 0, 1, (7,), ids, True, arrival, others=further))
        rows.place(step, chunks)
        if step != 3:
            rows.grow(step, chunks)
    for table, device in enumerate((rows.device_tables, *rows.further_tables)):
        columns = slice(table * rows.num_columns, table * rows.num_columns + int(rows.num_blocks.max()))
        for row in np.flatnonzero(rows.num_blocks):
            held = int(rows.num_blocks[row])
            assert device[row, :held].tolist() == rows.all_tables[row, columns][:held].tolist()
