"""The pool: all or nothing, least recently used first, tails before heads, nothing shared is ever written."""

import random

import pytest

from penstock.runtime.core import blocks
from penstock.runtime.core.blocks import BlockPool, Match
from penstock.runtime.core.prefix import Namespace, block_hash, packed
from tests.core.sequences import compute, make_sequence


def make_pool(num_blocks=8, block_size=4, **options):
    return BlockPool(num_blocks, block_size, **options)


def state(pool):
    """All that a refused command must not change."""
    return (
        list(pool._references),
        list(pool._free),
        list(pool._fresh),
        list(pool._cached),
        dict(pool._pins),
        dict(pool._index),
        pool.num_evictions,
    )


# Reserving


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (32, 8)])
def test_as_many_blocks_as_the_tokens_need(num_tokens, num_blocks):
    pool, sequence = make_pool(), make_sequence()
    assert pool.blocks_for(num_tokens) == num_blocks
    assert pool.reserve(sequence.holding, num_tokens)
    assert len(set(sequence.blocks)) == num_blocks
    assert pool.num_available == 8 - num_blocks
    assert pool.num_held == num_blocks
    assert pool.usage_fraction == num_blocks / 8
    pool.check([sequence])


def test_a_reservation_grows_by_what_is_missing():
    pool, sequence = make_pool(), make_sequence()
    assert pool.reserve(sequence.holding, 4)
    first = list(sequence.blocks)
    assert pool.reserve(sequence.holding, 4)
    assert sequence.blocks == first
    assert pool.reserve(sequence.holding, 5)
    assert sequence.blocks[:1] == first
    assert len(sequence.blocks) == 2
    assert pool.reserve(sequence.holding, 1), "less than it has is no option for less"
    assert len(sequence.blocks) == 2


def test_all_or_nothing():
    pool, holder, other = make_pool(), make_sequence(), make_sequence()
    assert pool.reserve(holder.holding, 20)
    before = state(pool)
    assert not pool.reserve(other.holding, 13)
    assert state(pool) == before
    assert other.blocks == []
    assert pool.reserve(other.holding, 12)
    assert pool.num_available == 0
    pool.check([holder, other])


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (5, True), (6, True), (7, False)])
def test_spare_blocks_are_left_over(spare, fits):
    pool, sequence = make_pool(), make_sequence()
    assert pool.reserve(sequence.holding, 8, spare=spare) == fits
    pool.check([sequence])


def test_blocks_that_are_matched_need_not_be_found_but_stop_being_available():
    pool = make_pool()
    pool.release(compute(pool, make_sequence(range(9))).holding)
    again = make_sequence(range(9))
    match = pool.match(again.holding)
    assert len(match.blocks) == 2
    assert not pool.reserve(again.holding, 9, match, spare=6), "8 blocks: 2 matched, 1 new, 6 spare"
    assert again.blocks == []
    assert pool.reserve(again.holding, 9, match, spare=5)
    assert again.blocks[:2] == list(match.blocks)
    assert pool.num_available == 5
    pool.check([again])


def test_a_matched_block_that_others_hold_costs_nothing():
    pool = make_pool(num_blocks=4)
    holder = compute(pool, make_sequence(range(9)))
    again = make_sequence(range(9))
    assert pool.reserve(again.holding, 9, pool.match(again.holding))
    assert pool.num_available == 0
    assert again.blocks[:2] == holder.blocks[:2]
    assert pool.num_held == 4
    pool.release(holder.holding)
    assert pool.num_available == 1
    pool.check([again])


# Matching


def test_at_least_one_token_is_left_to_compute():
    pool = make_pool()
    pool.release(compute(pool, make_sequence(range(8))).holding)
    assert pool.match(make_sequence(range(4)).holding) == Match((), "shorter than a block")
    assert len(pool.match(make_sequence(range(5)).holding).blocks) == 1
    assert len(pool.match(make_sequence(range(8)).holding).blocks) == 1
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 2


def test_a_match_says_why_there_is_no_more():
    pool = make_pool()
    pool.release(compute(pool, make_sequence(range(8))).holding)
    assert pool.match(make_sequence(range(9)).holding).miss == ""
    assert pool.match(make_sequence(range(13)).holding).miss == "differs from every cached prompt"
    assert pool.match(make_sequence((*range(7), 9, 9)).holding).miss == "differs from every cached prompt"
    assert pool.match(make_sequence((9, *range(8))).holding).miss == "nothing cached begins alike"
    assert pool.match(make_sequence((1, 2)).holding).miss == "shorter than a block"
    off = make_pool(caching=False)
    compute(off, make_sequence(range(8)))
    assert off.match(make_sequence(range(8))) == Match((), "prefix caching is off")
    assert off.num_cached == 0


def test_asking_changes_nothing():
    pool = make_pool()
    pool.release(compute(pool, make_sequence(range(8))).holding)
    before = state(pool)
    pool.match(make_sequence(range(20)).holding)
    assert state(pool) == before


def test_only_whole_computed_blocks_are_published():
    pool, sequence = make_pool(), make_sequence(range(12))
    pool.reserve(sequence.holding, 12)
    for num_computed, num_cached in [(3, 0), (4, 1), (7, 1), (11, 2), (12, 3)]:
        pool.publish(sequence.holding, num_computed)
        assert pool.num_cached == sequence.holding.num_published == num_cached
    pool.publish(sequence.holding, 12)
    assert pool.num_cached == 3
    pool.check([sequence])


def test_where_two_compute_the_same_the_first_to_publish_stands():
    pool = make_pool()
    one, two = make_sequence(range(9)), make_sequence(range(9))
    assert pool.reserve(one.holding, 9)
    assert pool.reserve(two.holding, 9)
    for sequence in (one, two):
        pool.publish(sequence.holding, 9)
    assert pool.num_cached == 2
    assert pool.match(make_sequence(range(9)).holding).blocks == tuple(one.blocks[:2])
    pool.check([one, two])
    pool.release(one.holding)
    pool.release(two.holding)
    assert pool.num_available == 8
    assert len(pool._cached) == 2
    pool.check([])


def test_a_private_copy_goes_on_after_the_published_one():
    """Its later blocks continue the published content, so they are found by those who begin there."""
    pool = make_pool()
    one = compute(pool, make_sequence(range(4)))
    two = make_sequence(range(8))
    assert pool.reserve(two.holding, 8)
    pool.publish(two.holding, 8)
    match = pool.match(make_sequence(range(9)).holding)
    assert match.blocks == (one.blocks[0], two.blocks[1])
    pool.check([one, two])


def test_what_is_built_on_a_match_is_found_with_it():
    pool = make_pool()
    first = compute(pool, make_sequence(range(5)))
    second = compute(pool, make_sequence(range(10)))
    assert pool.match(make_sequence(range(11)).holding).blocks == (first.blocks[0], second.blocks[1])
    pool.release(first.holding)
    pool.release(second.holding)
    third = compute(pool, make_sequence(range(13)))
    assert len(pool.match(make_sequence(range(13)).holding).blocks) == 3
    pool.check([third])


def test_blocks_go_by_the_names_that_others_compute_for_them():
    """The router finds a replica by them: each is of its own tokens and the name before it."""
    pool = make_pool()
    sequence = compute(pool, make_sequence(range(13), salt="s"))
    name, names = Namespace("s", "").hash, []
    for start in (0, 4, 8):
        name = block_hash(name, packed(range(start, start + 4)))
        names.append(name)
    assert sequence.holding.hashes == names
    assert [pool._index[name] for name in names] == sequence.blocks[:3]
    for number, block in enumerate(sequence.blocks[:3]):
        assert pool._contents[block].tokens == packed(range(4 * number, 4 * number + 4))


def test_what_follows_an_evicted_block_is_found_again_once_it_is_back():
    pool = make_pool(num_blocks=3)
    first = compute(pool, make_sequence(range(8)))
    pool.release(first.holding)
    pool._forget(pool._index[first.holding.hashes[0]])
    assert pool.match(make_sequence(range(9)).holding).blocks == ()
    again = compute(pool, make_sequence(range(9)))
    assert pool.num_cached == 2
    assert pool.match(make_sequence(range(9)).holding).blocks == tuple(again.blocks[:2])
    pool.check([again])


FIELDS = [{"salt": "a"}, {"adapter": "a"}, {"salt": "b", "adapter": "a"}, {"salt": "ab"}, {"adapter": "ab"}, {}]


@pytest.mark.parametrize("mine", FIELDS)
@pytest.mark.parametrize("theirs", FIELDS)
def test_namespaces_never_share(mine, theirs):
    pool = make_pool()
    compute(pool, make_sequence(range(9), **mine))
    assert len(pool.match(make_sequence(range(9), **theirs).holding).blocks) == (2 if mine == theirs else 0)


@pytest.mark.parametrize("hash_of", [lambda parent, tokens: b"same", lambda parent, tokens: bytes([sum(tokens) % 3])])
def test_no_hash_is_trusted(monkeypatch, hash_of):
    """Whatever collides, a match holds the sequence's own tokens after its own beginning."""
    monkeypatch.setattr(blocks, "block_hash", hash_of)
    choose = random.Random(0)
    pool, holders, written = make_pool(16, 2), [], {}
    for _ in range(400):
        if holders and choose.random() < 0.5:
            pool.release(holders.pop(choose.randrange(len(holders))).holding)
        tokens = tuple(choose.randrange(3) for _ in range(choose.randrange(1, 9)))
        sequence = make_sequence(tokens, salt=choose.choice("ab"))
        match = pool.match(sequence.holding)
        for number, block in enumerate(match.blocks):
            assert written[block] == (sequence.holding.namespace, tokens[: 2 * number + 2])
        if pool.reserve(sequence.holding, len(tokens), match):
            for number in range(len(match.blocks), len(sequence.blocks)):
                written[sequence.blocks[number]] = (sequence.holding.namespace, tokens[: 2 * number + 2])
            pool.publish(sequence.holding, len(tokens))
            holders.append(sequence)
        pool.check(holders)


# Eviction


def test_free_blocks_are_taken_before_cached_ones():
    pool = make_pool(num_blocks=4)
    pool.release(compute(pool, make_sequence(range(8))).holding)
    other = make_sequence()
    assert pool.reserve(other.holding, 8)
    assert pool.num_evictions == 0
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 2
    assert pool.reserve(other.holding, 9)
    assert pool.num_evictions == 1


def test_the_least_recently_used_goes_first():
    pool = make_pool(num_blocks=3, block_size=1)
    prompts = {name: (token, 0) for name, token in (("a", 1), ("b", 2), ("c", 3))}
    for prompt in prompts.values():
        sequence = make_sequence(prompt[:1])
        pool.release(compute(pool, sequence).holding)
    used = make_sequence(prompts["a"])
    match = pool.match(used.holding)
    pool.reserve(used.holding, 1, match)
    pool.release(used.holding)
    evicted = []
    holders = [make_sequence() for _ in prompts]
    for holder in holders:
        pool.reserve(holder.holding, 1)
        evicted += [
            name
            for name in prompts
            if name not in evicted and not pool.match(make_sequence(prompts[name]).holding).blocks
        ]
    assert evicted == ["b", "c", "a"]
    pool.check(holders)


def test_tails_go_before_heads():
    """A prefix outlives what was built on it, so what is left of it can still be found."""
    pool = make_pool(num_blocks=4)
    pool.release(compute(pool, make_sequence(range(16))).holding)
    holder = make_sequence()
    for num_blocks in range(1, 5):
        pool.reserve(holder.holding, 4 * num_blocks)
        assert len(pool.match(make_sequence(range(17)).holding).blocks) == 4 - num_blocks
        pool.check([holder])


def test_a_block_in_use_is_never_evicted():
    pool = make_pool(num_blocks=4)
    user = compute(pool, make_sequence(range(9)))
    other = make_sequence()
    assert not pool.reserve(other.holding, 8)
    assert pool.reserve(other.holding, 4)
    assert not set(other.blocks) & set(user.blocks)
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 2
    pool.check([user, other])


def test_everything_comes_back():
    pool = make_pool()
    sequences = [compute(pool, make_sequence(range(start, start + 7))) for start in (0, 100, 200)]
    for sequence in sequences:
        pool.release(sequence.holding)
        assert sequence.blocks == []
        assert sequence.holding.num_published == 0
        assert sequence.holding.tail is None
    assert pool.num_available == 8
    assert pool.num_held == 0
    assert pool.usage_fraction == 0.0
    assert pool.num_cached == 3
    pool.check([])


# Forks


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 7, 8, 9, 11])
@pytest.mark.parametrize("caching", [True, False])
def test_a_fork_shares_whole_blocks_and_owns_the_one_it_writes(num_tokens, caching):
    pool = make_pool(caching=caching)
    parent = compute(pool, make_sequence(range(12)))
    child = make_sequence(range(num_tokens + 1))
    fork = pool.fork(parent.holding, child.holding, num_tokens)
    num_shared = num_tokens // 4
    assert fork.num_tokens == num_tokens
    assert child.blocks[:-1] == parent.blocks[:num_shared]
    assert child.blocks[-1] not in parent.blocks
    assert len(child.blocks) == pool.blocks_for(num_tokens + 1)
    assert fork.copies == (((parent.blocks[num_shared], child.blocks[-1]),) if num_tokens % 4 else ())
    assert child.holding.num_published == (num_shared if caching else 0)
    assert child.holding.hashes == parent.holding.hashes[: child.holding.num_published]
    pool.check([parent, child])
    pool.publish(child.holding, num_tokens + 1)
    pool.check([parent, child])
    pool.release(parent.holding)
    pool.check([child])
    pool.release(child.holding)
    assert pool.num_held == 0
    pool.check([])


def test_what_a_fork_publishes_continues_its_parent():
    pool = make_pool()
    parent = compute(pool, make_sequence(range(12)))
    child = make_sequence(range(10))
    pool.fork(parent.holding, child.holding, 9)
    child.tokens += [77, 78]
    pool.publish(child.holding, 12)
    match = pool.match(make_sequence((*range(10), 77, 78, 79)).holding)
    assert match.blocks == tuple(child.blocks)
    assert pool.match(make_sequence((*range(10), 77, 99, 79)).holding).blocks == tuple(child.blocks[:2])


@pytest.mark.parametrize(("num_held", "spare", "fits"), [(7, 0, True), (8, 0, False), (6, 1, True), (7, 1, False)])
def test_a_fork_needs_one_block(num_held, spare, fits):
    pool = make_pool(caching=False)
    parent = compute(pool, make_sequence(range(4 * num_held)))
    child = make_sequence(range(6))
    before = state(pool)
    fork = pool.fork(parent.holding, child.holding, 5, spare) if spare else pool.fork(parent.holding, child.holding, 5)
    assert (fork is not None) == fits
    if not fits:
        assert state(pool) == before
        assert child.blocks == []
    pool.check([parent, child])


# Fresh blocks


def test_a_fresh_block_is_taken_before_a_cached_one_up_to_the_number_kept():
    pool = make_pool(8, 4, num_kept_blocks=5)
    first, second = (compute(pool, make_sequence(range(base, base + 8))) for base in (0, 100))
    for sequence in (first, second):
        pool.release(sequence.holding)
    touched = 4
    assert (pool.num_cached, len(pool._fresh)) == (4, 8 - touched)
    third = compute(pool, make_sequence(range(200, 208)))
    assert (len(pool._fresh), pool.num_evictions) == (3, 1), "the fifth block is fresh, the next a cached one"
    pool.check([third])


def test_those_who_run_take_fresh_blocks_when_nothing_cached_is_left():
    pool = make_pool(8, 4, num_kept_blocks=2)
    holders = [compute(pool, make_sequence(range(base, base + 8))) for base in (0, 100, 200, 300)]
    assert (pool.num_available, pool.num_evictions) == (0, 0)
    pool.check(holders)


def test_memory_does_not_grow_for_prefixes():
    pool = make_pool(64, 4, num_kept_blocks=6)
    for base in range(0, 4000, 100):
        pool.release(compute(pool, make_sequence(range(base, base + 8))).holding)
    assert len(pool._fresh) == 64 - 6
    assert pool.num_cached == 6
    pool.check([])


def test_a_miss_is_told_beside_what_was_published_last_and_is_still_there():
    pool = BlockPool(16, 4)
    older = compute(pool, make_sequence((1, 2, 3, 4, 5, 6, 7, 8)))
    newer = compute(pool, make_sequence((1, 2, 3, 4, 9, 9, 9, 9)))
    asked = make_sequence((1, 2, 3, 4, 5, 5, 5, 5, 5))
    assert pool.match(asked.holding).differs == (4, 5, 9)
    pool.retract(older.holding, 1)
    assert pool.match(asked.holding).differs == (4, 5, 9), "another that is gone changes nothing"
    pool.retract(newer.holding, 1)
    assert pool.match(asked.holding).differs is None
    pool.check([older.holding, newer.holding])
