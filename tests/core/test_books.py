"""Books that do not balance are noticed."""

import pytest

from penstock.runtime.core.blocks import BlockPool
from tests.core.sequences import compute, make_sequence


def corrupt_references(pool, sequence):
    pool._references[sequence.blocks[0]] += 1


def corrupt_missing_reference(pool, sequence):
    sequence.blocks.pop()


def corrupt_twice_held(pool, sequence):
    sequence.blocks.append(sequence.blocks[0])
    pool._references[sequence.blocks[0]] += 1


def corrupt_twice_free(pool, sequence):
    pool._fresh.append(pool._fresh[0])


def corrupt_lost_block(pool, sequence):
    pool._fresh.pop()


def corrupt_free_and_held(pool, sequence):
    pool._fresh[0] = sequence.blocks[0]


def corrupt_cached_and_held(pool, sequence):
    pool._cached[sequence.blocks[0]] = None


def corrupt_stranger(pool, sequence):
    pool._fresh[0] = 99


def corrupt_shared(pool, sequence):
    pool.num_shared += 1


def corrupt_index(pool, sequence):
    pool._index[b"nonsense"] = sequence.blocks[0]


def corrupt_index_entry(pool, sequence):
    pool._index[sequence.holding.hashes[0]] = sequence.blocks[1]


def corrupt_lost_index(pool, sequence):
    del pool._index[sequence.holding.hashes[0]]


def corrupt_free_content(pool, sequence):
    block, content = pool._fresh[-1], pool._contents[sequence.blocks[0]]
    pool._contents[sequence.blocks[0]] = None
    pool._contents[block] = content
    pool._index[content.hash] = block


def corrupt_cached_without_content(pool, sequence):
    pool._cached[pool._fresh.pop()] = None


def corrupt_pin_without_content(pool, sequence):
    pool._pins[pool._fresh.pop()] = 1.0


def corrupt_twice_published(pool, sequence):
    pool._contents[sequence.blocks[-1]] = pool._contents[sequence.blocks[0]]


CORRUPTIONS = [make for name, make in sorted(globals().items()) if name.startswith("corrupt_")]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda make: make.__name__)
def test_a_book_that_does_not_balance_is_noticed(corrupt):
    pool = BlockPool(8, 4)
    sequence = compute(pool, make_sequence(range(10)))
    pool.check([sequence])
    corrupt(pool, sequence)
    with pytest.raises(RuntimeError):
        pool.check([sequence])
