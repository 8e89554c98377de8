"""The quick ways to make a value give the value."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batch import Chunk, Delta, single, token_delta

COUNTS = st.integers(0, 2**31)
IDS = st.lists(COUNTS, max_size=3).map(tuple)


@given(COUNTS, COUNTS, IDS)
def test_a_single_is_a_chunk_of_one_token_that_draws(row, start, new_blocks):
    chunk = single(row, start, new_blocks)
    assert type(chunk) is Chunk
    assert chunk == Chunk(row, start, 1, (), new_blocks, True, None)
    assert chunk.end == start + 1


@given(COUNTS, COUNTS, IDS)
def test_a_token_delta_is_a_delta_of_tokens_alone(request_id, choice, token_ids):
    delta = token_delta(request_id, choice, token_ids)
    assert type(delta) is Delta
    assert delta == Delta(request_id, choice, token_ids)
