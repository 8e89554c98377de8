"""Names of token runs: equal exactly when what they name is equal, the same in every process."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.core.prefix import TOKEN_BYTES, Namespace, block_hash, packed

NAMES = st.text(st.characters(max_codepoint=0x2FF), max_size=4) | st.sampled_from(["\ud800", "ab", "a", "b", "\0"])
NAMESPACES = st.builds(Namespace, NAMES, NAMES)
BLOCKS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4).map(packed)


@given(NAMESPACES, NAMESPACES)
def test_namespaces_hash_alike_only_if_they_are_equal(one, other):
    assert (one.hash == other.hash) == (one == other)


def test_no_two_namespaces_read_alike():
    """Fields that join to the same text are still two fields."""
    namespaces = [Namespace("a", "b"), Namespace("ab", ""), Namespace("", "ab"), Namespace("b", "a"), Namespace("", "")]
    assert len({namespace.hash for namespace in namespaces}) == len(namespaces)


@given(NAMESPACES, BLOCKS, NAMESPACES, BLOCKS)
def test_a_block_is_named_by_what_it_and_all_before_it_hold(one, tokens, other, other_tokens):
    same = (one, tokens) == (other, other_tokens)
    assert (block_hash(one.hash, tokens) == block_hash(other.hash, other_tokens)) == same


@given(BLOCKS, BLOCKS)
def test_a_block_is_not_its_tokens_in_another_place(first, second):
    root = Namespace("", "").hash
    assert block_hash(block_hash(root, first), second) != block_hash(root, first + second)
    assert block_hash(block_hash(root, first), second) != block_hash(root, second)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_packed_tokens_are_little_endian_words_whatever_holds_them(token_ids):
    words = b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in token_ids)
    assert packed(token_ids) == packed(tuple(token_ids)) == words


def test_names_never_change():
    """Router and replicas compute them apart, in processes that may be of different versions and byte orders."""
    root = Namespace("salt", "adapter").hash
    assert root.hex() == "b145be500e7356b2b13971c0aaa130f1"
    assert block_hash(root, packed((0, 1, 2**31 - 1))).hex() == "e0dc78f5cd9f4fb7639ec42353a0af12"
