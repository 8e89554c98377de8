"""Steps recorded for any chunks: sizes, and what is worked out on the device against what the host works out."""

import random

import pytest
import torch

from penstock.runtime.core.batch import Arrival, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.execution.cuda.mixed_graphs import WAVE_FROM, padded_chunks, padded_tokens, spread
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.eager.inputs import make_inputs
from penstock.runtime.models.kinds.cache import TableGroup

BLOCK_SIZE, NUM_ROWS, MAX_CONTEXT, IDLE_BLOCK = 4, 6, 64, 99
CPU = torch.device("cpu")
GROUPS = (TableGroup(None, 1), TableGroup(9, 2))


@pytest.mark.parametrize("num_tokens", [*range(1, 300), 384, 385, 449, 512, 513, 1000, 2047, 2048, 2049, 8191, 8192])
def test_padding_adds_little_and_sizes_are_few(num_tokens: int) -> None:
    padded = padded_tokens(num_tokens)
    room = 63 if num_tokens <= WAVE_FROM else 127
    assert num_tokens <= padded <= max(num_tokens * 9 // 8 + 1, num_tokens + room)
    assert padded_tokens(padded) == padded


def test_chunks_are_padded_to_powers_of_two() -> None:
    assert [padded_chunks(number) for number in (1, 32, 33, 64, 65, 256, 257)] == [32, 32, 64, 64, 128, 256, 512]


def arriving(row: int, length: int, numbers: random.Random) -> Chunk:
    num_blocks = -(-length // BLOCK_SIZE)
    blocks = tuple(numbers.randrange(90) for _ in range(num_blocks))
    tokens = tuple(numbers.randrange(1000) for _ in range(length))
    others = tuple(tuple(numbers.randrange(90) for _ in range(num_blocks * width)) for _, width in GROUPS[1:])
    return Chunk(row, 0, length, tokens, blocks, True, Arrival(SamplingParams(), 0, length, (), ""), others=others)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_device_works_out_is_what_the_host_works_out(seed: int) -> None:
    numbers = random.Random(seed)
    rows = DeviceRows(NUM_ROWS + 1, MAX_CONTEXT, BLOCK_SIZE, 1000, CPU, IDLE_BLOCK, GROUPS)
    chunks = [arriving(row, numbers.randint(1, 30), numbers) for row in numbers.sample(range(NUM_ROWS), 4)]
    rows.place(0, chunks)
    rows.grow(0, chunks)
    # Any later part of each, as a chunk behind a cached prefix is, or a single last token.
    later = []
    for chunk in chunks:
        start = numbers.randrange(chunk.length)
        later.append(
            chunk._replace(
                start=start, length=chunk.length - start, token_ids=(), new_blocks=(), arrival=None, others=()
            )
        )
    reported = make_inputs(later, rows)
    total = sum(chunk.length for chunk in later)
    described = [(chunk.row, chunk.start, chunk.length, 1) for chunk in later] + [(NUM_ROWS, 0, 0, 0)] * 3
    chunk_table = torch.tensor(described).t()
    token_ids, layout, row_of_token = spread(chunk_table, total + 7, rows, BLOCK_SIZE, NUM_ROWS)
    assert torch.equal(token_ids[:total], reported.token_ids)
    assert torch.equal(layout.positions[:total], reported.layout.positions)
    assert torch.equal(layout.slots[:total], reported.layout.slots)
    assert torch.equal(layout.query_starts[: len(later) + 1], reported.layout.query_starts)
    assert torch.equal(layout.context_lengths[: len(later)], reported.layout.context_lengths)
    width = reported.layout.block_tables.shape[1]
    for mine, theirs, chunk in zip(layout.block_tables, reported.layout.block_tables, later):
        seen = -(-chunk.end // BLOCK_SIZE)
        assert torch.equal(mine[:width][:seen], theirs[:seen])
    padding = layout.slots[total:]
    assert torch.equal(padding, torch.full_like(padding, IDLE_BLOCK * BLOCK_SIZE))
    assert bool((layout.query_starts[len(later) :] == total).all())
    for mine, theirs in zip(rows.through_others(layout, chunk_table[0], row_of_token), reported.others, strict=True):
        assert torch.equal(mine.slots[:total], theirs.slots)
        for ours, known, chunk in zip(mine.block_tables, theirs.block_tables, later):
            seen = -(-chunk.end // BLOCK_SIZE)
            assert torch.equal(ours[:seen], known[:seen])
