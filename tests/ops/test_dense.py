"""Which keys before a long chunk the library attends to: whole pieces from the first on, none larger than its bound."""

import pytest
import torch

pytest.importorskip("triton")

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.triton.attend.dense import MAX_NUMBERS, MIN_QUERIES, PIECES, earlier
from tests.ops.examples.attention import example_layout

BLOCK_SIZE = 16


@pytest.mark.parametrize("num_kv_heads", [8, 32])
@pytest.mark.parametrize("context", [MIN_QUERIES, 5_000, 28_672 + 2_000, 150_000])
def test_pieces_cover_all_but_the_last_few_keys_and_none_is_larger_than_its_bound(
    num_kv_heads: int, context: int
) -> None:
    spec = GQA(32, num_kv_heads, 128, None, 0.1)
    blocks = -(-context // BLOCK_SIZE)
    layout = example_layout([MIN_QUERIES], [context], BLOCK_SIZE, blocks, torch.Generator().manual_seed(1))
    found = earlier(layout, 0, BLOCK_SIZE, spec)
    before = context - MIN_QUERIES
    if before < PIECES[-1]:
        assert found is None
        return
    assert found is not None
    assert before - PIECES[-1] < found.num_keys <= before
    assert torch.equal(torch.cat(found.pieces), layout.block_tables[0, : found.num_keys // BLOCK_SIZE].long())
    assert max(map(len, found.pieces)) * BLOCK_SIZE * num_kv_heads * 128 <= MAX_NUMBERS


def test_a_short_chunk_is_left_to_our_kernel() -> None:
    layout = example_layout([MIN_QUERIES - 1], [20_000], BLOCK_SIZE, 1250, torch.Generator().manual_seed(1))
    assert earlier(layout, 0, BLOCK_SIZE, GQA(32, 8, 128, None, 0.1)) is None
