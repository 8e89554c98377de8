"""Blocks on their way out of the device: not for taking until their copy is over, and found by prompts all the while."""

import pytest

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import Content, packed
from penstock.runtime.core.sequence import Sequence
from tests.core.sequences import compute, make_sequence
from tests.core.steps import fill, make_scheduler, step

SIZE = 4
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)


def cached_pool(num_blocks: int = 4) -> tuple[BlockPool, tuple[int, ...]]:
    """A pool in which two blocks of a prompt are cached, and those blocks."""
    pool = BlockPool(num_blocks, SIZE)
    pool.release(compute(pool, make_sequence(PROMPT)).holding)
    return pool, found(pool)


def found(pool: BlockPool) -> tuple[int, ...]:
    return pool.match(make_sequence((*PROMPT, 9)).holding).blocks


def take(pool: BlockPool, num_blocks: int) -> Sequence | None:
    """Blocks for a prompt that has nothing in common with others; None if there are too few."""
    sequence = make_sequence(range(100, 100 + SIZE * num_blocks))
    return sequence if pool.reserve(sequence.holding, SIZE * num_blocks) else None


def check(pool: BlockPool, *sequences: Sequence) -> None:
    pool.check([sequence.holding for sequence in sequences])


def test_a_leaving_block_is_found_and_not_taken() -> None:
    pool, (first, second) = cached_pool()
    pool.leave(first)
    check(pool)
    assert (list(pool.leaving), pool.num_available, pool.num_unused, pool.num_held) == ([first], 3, 2, 0)
    assert found(pool) == (first, second)
    assert take(pool, 4) is None
    taker = take(pool, 3)
    assert taker is not None
    check(pool, taker)
    assert found(pool) == (first,)


def test_when_its_copy_is_over_it_is_the_next_to_be_taken() -> None:
    pool, (first, second) = cached_pool()
    assert [block for block, _ in pool.oldest(2)] == [second, first], "a prefix outlives what was built on it"
    pool.leave(first)
    assert [block for block, _ in pool.oldest(2)] == [second]
    content = pool.stay(first)
    assert content is not None
    assert content.tokens == packed(PROMPT[:SIZE])
    assert [block for block, _ in pool.oldest(2)] == [first, second]
    assert [held.tokens for _, held in pool.oldest(1)] == [packed(PROMPT[:SIZE])]
    assert not pool.leaving
    check(pool)


def test_a_leaving_block_that_somebody_holds_stays_held_and_is_cached_afterwards() -> None:
    pool, (first, second) = cached_pool()
    pool.leave(second)
    holder = compute(pool, make_sequence((*PROMPT, 9)))
    check(pool, holder)
    assert pool.num_held == 3
    assert pool.stay(second) is not None
    check(pool, holder)
    assert pool.num_held == 3
    pool.release(holder.holding)
    check(pool)
    assert found(pool) == (first, second)
    assert (pool.num_available, pool.num_unused) == (4, 2)


def test_a_block_that_is_given_back_while_it_leaves_is_not_for_taking() -> None:
    pool = BlockPool(2, SIZE)
    holder = compute(pool, make_sequence(PROMPT))
    first = holder.blocks[0]
    pool.leave(first)
    pool.release(holder.holding)
    check(pool)
    assert (pool.num_available, pool.num_held) == (1, 0)
    assert take(pool, 2) is None
    assert pool.stay(first) is not None
    assert take(pool, 2) is not None


def test_what_is_retracted_while_it_leaves_was_not_copied() -> None:
    pool, (first, second) = cached_pool()
    pool.leave(first)
    writer = make_sequence((*PROMPT, 9))
    pool.match(writer.holding)
    assert pool.retract(writer.holding, 0) == {first, second}
    check(pool)
    assert (pool.num_available, pool.num_unused) == (3, 3), "the copy is still read from there"
    assert pool.stay(first) is None
    check(pool)
    assert (pool.num_available, pool.num_unused) == (4, 4)


def test_a_pin_outlasts_a_copy() -> None:
    pool, (first, second) = cached_pool()
    pool.pin(pool.match(make_sequence((*PROMPT, 9)).holding), 5.0)
    pool.leave(first)
    check(pool)
    assert (pool.num_available, pool.num_held, pool.num_pinned) == (2, 0, 2)
    pool.stay(first)
    check(pool)
    assert pool.num_available == 2
    pool.leave(second)
    pool.unpin_expired(5.0)
    check(pool)
    assert pool.num_available == 3
    pool.stay(second)
    assert pool.num_available == 4
    check(pool)


def test_only_published_blocks_leave_and_one_at_a_time() -> None:
    pool, (first, _) = cached_pool()
    with pytest.raises(RuntimeError, match="holds nothing to copy out"):
        pool.leave(next(block for block in range(4) if block not in found(pool)))
    pool.leave(first)
    with pytest.raises(RuntimeError, match="being copied"):
        pool.leave(first)


def test_who_asks_is_told_of_every_cached_block_that_is_taken() -> None:
    pool, (first, second) = cached_pool()
    told: list[tuple[int, Content]] = []
    pool.on_evict = lambda block, content: told.append((block, content))
    taker = take(pool, 3)
    assert taker is not None
    assert [(block, content.tokens) for block, content in told] == [(second, packed(PROMPT[SIZE:]))]
    assert found(pool) == (first,)
    pool.release(taker.holding)
    assert take(pool, 3) is not None
    assert len(told) == 1, "what holds nothing of use is taken first"


def test_who_asks_is_told_of_a_sequence_before_it_loses_its_blocks() -> None:
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    told: list[tuple[int, int]] = []
    scheduler.roster.on_preempt = lambda sequence: told.append((sequence.request_id, len(sequence.blocks)))
    fill(scheduler, {}, {})
    while not scheduler.num_preemptions:
        step(scheduler)
    assert told == [(2, 2)]


def test_blocks_on_their_way_in_are_counted_until_they_have_landed() -> None:
    pool = BlockPool(4, SIZE)
    coming = make_sequence((*PROMPT, 9)).holding
    assert pool.num_arriving == 0
    assert len(pool.arrive(coming)) == 2
    assert (pool.num_arriving, pool.num_available) == (2, 2)
    check(pool)
    pool.land(coming, is_whole=True)
    assert (pool.num_arriving, pool.num_available) == (0, 4)
    assert len(found(pool)) == 2
    late = make_sequence((*PROMPT, *PROMPT, 9)).holding
    assert len(pool.arrive(late)) == 2, "what is there already does not come again"
    pool.land(late, is_whole=False)
    assert (pool.num_arriving, pool.num_available, pool.num_cached) == (0, 4, 2)
    check(pool)
    assert not pool.arrive(make_sequence((*PROMPT, *PROMPT, 9)).holding, spare=3)
