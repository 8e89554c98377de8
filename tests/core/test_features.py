"""A batch added up: equal to counting token by token."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.core.features import Features, features_of

CHUNKS = st.builds(
    lambda start, length, samples, num_drafts: Chunk(
        0, start, length, (), (), samples, None, min(num_drafts, length - 1) if samples else 0
    ),
    st.integers(0, 5000),
    st.one_of(st.just(1), st.integers(2, 700)),
    st.booleans(),
    st.integers(0, 4),
)


@given(st.lists(CHUNKS, min_size=1, max_size=12), st.integers(0, 9000))
def test_features_are_sums_over_tokens(chunks, num_shared):
    singles = [chunk for chunk in chunks if chunk.length == 1]
    longer = [chunk for chunk in chunks if chunk.length > 1]
    pairs = sum(1 + position for chunk in longer for position in range(chunk.start, chunk.end))
    found = features_of(Batch(1, tuple(chunks), (), num_shared))
    assert found == Features(
        num_chunks=len(chunks),
        num_singles=len(singles),
        num_long_tokens=sum(chunk.length for chunk in longer),
        num_drawn=sum(1 + chunk.num_drafts for chunk in chunks if chunk.samples),
        single_kv=sum(chunk.end for chunk in singles),
        long_kv=sum(chunk.end for chunk in longer),
        max_kv=max(chunk.end for chunk in chunks),
        long_pairs=pairs,
        shared_kv=num_shared,
    )
    assert found.num_tokens == Batch(1, tuple(chunks)).num_tokens


def test_a_batch_of_nothing_is_nothing():
    assert features_of(Batch(1, ())) == Features(0, 0, 0, 0, 0, 0, 0, 0, 0)
