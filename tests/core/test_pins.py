"""Pinned prompts stay until their time, but nobody waits for ever because of them."""

from dataclasses import replace

import pytest

from penstock.runtime.core import blocks
from penstock.runtime.core.batch import Logprob
from penstock.runtime.core.blocks import BlockPool
from tests.core.sequences import compute, make_sequence
from tests.core.steps import add, finish, inside, make_scheduler, output_of, pin, step
from tests.engine.answers import drain, make_engine, make_request


def make_pool(num_blocks=8, block_size=4, **options):
    return BlockPool(num_blocks, block_size, **options)


def cached_pool():
    """4 blocks: two cached, two free."""
    pool = BlockPool(4, 4)
    pool.release(compute(pool, make_sequence(range(8))).holding)
    return pool, pool.match(make_sequence(range(9)).holding)


def test_pinned_blocks_are_not_for_taking():
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    assert pool.num_pinned == 2
    assert pool.num_available == 2
    assert pool.num_held == 0
    assert pool.usage_fraction == 0.5
    holder = make_sequence()
    assert not pool.reserve(holder.holding, 9)
    assert pool.reserve(holder.holding, 8)
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 2
    pool.check([holder])


def test_pins_end_when_they_say():
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    pool.unpin_expired(9.999)
    assert pool.num_pinned == 2
    pool.unpin_expired(10.0)
    assert pool.num_pinned == 0
    assert pool.num_available == 4
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 2
    pool.check([])


@pytest.mark.parametrize("ends", [(10.0, 20.0), (20.0, 10.0), (20.0, 20.0), (5.0, 20.0, 10.0)])
def test_the_later_of_two_pins_holds(ends):
    pool, match = cached_pool()
    for until_s in ends:
        pool.pin(match, until_s)
        pool.check([])
    pool.unpin_expired(19.0)
    assert pool.num_pinned == 2
    pool.unpin_expired(20.0)
    assert pool.num_pinned == 0
    pool.check([])


def test_a_pin_renewed_for_the_same_time_is_one_pin():
    pool, match = cached_pool()
    for _ in range(100):
        pool.pin(match, 10.0)
    assert len(pool._pin_ends) == 2
    pool.unpin_expired(10.0)
    assert pool.num_pinned == 0


def test_a_pin_covers_all_of_a_match_though_its_tail_is_pinned_for_longer():
    pool, match = cached_pool()
    pool.pin(match._replace(blocks=match.blocks[1:]), 20.0)
    assert pool.num_pinned == 1
    pool.pin(match, 10.0)
    assert pool.num_pinned == 2
    pool.unpin_expired(10.0)
    assert pool.num_pinned == 1
    pool.check([])


def test_pins_expire_one_by_one():
    pool = make_pool()
    matches = []
    for start, until_s in ((0, 30.0), (100, 10.0), (200, 20.0)):
        pool.release(compute(pool, make_sequence(range(start, start + 4))).holding)
        matches.append(pool.match(make_sequence(range(start, start + 5)).holding))
        pool.pin(matches[-1], until_s)
    left = []
    for now in (9.0, 10.0, 20.0, 30.0):
        pool.unpin_expired(now)
        left.append(pool.num_pinned)
    assert left == [3, 2, 1, 0]


def test_prompts_of_a_scheduler_are_pinned_and_unpinned() -> None:
    engine = make_engine()
    request = make_request(1, range(10), max_tokens=1)
    engine.submit(request)
    drain(engine)
    scheduler = engine.scheduler
    assert pin(scheduler, request, 1e9) == 8
    assert scheduler.pool.num_pinned == 2
    scheduler.pool.unpin_all()
    assert scheduler.pool.num_pinned == 0
    scheduler.check()


@pytest.mark.parametrize("prompt_logprobs", [None, 0])
@pytest.mark.parametrize("resumed", [(), ((7, 7),)])
def test_a_prompt_is_pinned_when_its_first_token_is_drawn(prompt_logprobs, resumed):
    """Once, for the time it asked for, however many steps it took and whatever was told before."""
    scheduler = make_scheduler(num_blocks=20, block_size=4, max_batch_tokens=4)
    request = make_request(1, range(10), max_tokens=6, prompt_logprobs=prompt_logprobs)
    scheduler.add(replace(request, pins=((8, 60.0),), resumed=resumed), 0.0)
    now, num_pinned = 0.0, []
    while scheduler.has_work:
        now += 1.0
        batch = scheduler.schedule(now)
        told = tuple((Logprob(1, -1.0, ()),) * len(chunk.token_ids) for chunk in batch.chunks)
        deltas = scheduler.commit(batch, output_of(batch, prompt_logprobs=told if prompt_logprobs == 0 else ()), now)
        num_pinned.append((scheduler.pool.num_pinned, any(delta.token_ids for delta in deltas)))
    first = [has_tokens for _, has_tokens in num_pinned].index(True)
    assert [pinned for pinned, _ in num_pinned] == [0] * first + [2] * (len(num_pinned) - first)
    scheduler.pool.unpin_expired(first + 60.9)
    assert scheduler.pool.num_pinned == 2
    scheduler.pool.unpin_expired(first + 61.0)
    assert scheduler.pool.num_pinned == 0


@pytest.mark.parametrize("num_asked", [4, 8, 12])
def test_as_much_is_pinned_as_was_asked_in_the_namespace_of_the_request(num_asked):
    scheduler = make_scheduler(num_blocks=20, block_size=4)
    request = make_request(1, range(17), max_tokens=1, salt="guest", adapter="poet")
    scheduler.add(replace(request, pins=((num_asked, 60.0),)), 0.0)
    finish(scheduler)
    assert scheduler.pool.num_pinned == num_asked // 4


def test_one_choice_pins_for_all():
    scheduler = make_scheduler(num_blocks=20, block_size=4)
    scheduler.add(replace(make_request(1, range(10), max_tokens=2, n=2), pins=((8, 60.0),)), 0.0)
    for now in (1.0, 2.0, 3.0):
        step(scheduler, now)
    assert scheduler.pool.num_pinned == 2
    scheduler.pool.unpin_expired(61.0)
    assert scheduler.pool.num_pinned == 0


def test_a_pin_can_be_broken():
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    pool.unpin_all()
    assert pool.num_pinned == 0
    assert pool.num_available == 4
    pool.unpin_all()
    pool.pin(match, float("inf"))
    pool.unpin_expired(1e12)
    assert pool.num_pinned == 2
    pool.unpin_all()
    assert pool.num_pinned == 0
    assert pool.num_available == 4
    pool.check([])


def test_an_old_end_does_not_break_a_new_pin():
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    pool.unpin_all()
    pool.pin(match, 50.0)
    pool.unpin_expired(10.0)
    assert pool.num_pinned == 2
    pool.check([])


def test_a_pinned_block_in_use_goes_back_to_its_pin():
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    user = make_sequence(range(9))
    assert pool.reserve(user.holding, 9, match)
    assert pool.num_held == 3
    assert pool.num_available == 1
    pool.check([user])
    pool.release(user.holding)
    assert pool.num_pinned == 2
    assert pool.num_available == 2
    pool.check([])


def test_a_block_pinned_in_use_becomes_cached_when_the_pin_ends_first():
    pool, match = cached_pool()
    user = make_sequence(range(9))
    pool.reserve(user.holding, 9, match)
    pool.pin(match, 10.0)
    assert pool.num_available == 1
    pool.unpin_expired(10.0)
    assert pool.num_available == 1
    pool.check([user])
    pool.release(user.holding)
    assert pool.num_available == 4
    pool.check([])


def test_unpinned_tails_go_before_heads():
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    pool.unpin_all()
    holder = make_sequence()
    pool.reserve(holder.holding, 12)
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 1
    pool, match = cached_pool()
    pool.pin(match, 10.0)
    pool.unpin_expired(10.0)
    pool.reserve(make_sequence().holding, 12)
    assert len(pool.match(make_sequence(range(9)).holding).blocks) == 1


def test_a_collision_takes_the_pin_with_the_content(monkeypatch):
    monkeypatch.setattr(blocks, "block_hash", lambda parent, tokens: b"same")
    pool = BlockPool(4, 4)
    pool.release(compute(pool, make_sequence(range(4))).holding)
    pool.pin(pool.match(make_sequence(range(5)).holding), 10.0)
    assert pool.num_pinned == 1
    other = compute(pool, make_sequence(range(4, 8)))
    assert pool.num_pinned == 0
    assert pool.num_available == 3
    pool.check([other])
    pool.unpin_expired(10.0)
    pool.check([other])


# Under a scheduler


def test_a_prompt_can_be_kept_until_a_time():
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    request = make_request(2, range(1000, 1009), max_tokens=1)
    assert pin(scheduler, request, 50.0) == 8
    assert pin(scheduler, make_request(3, range(9)), 50.0) == 0
    assert scheduler.pool.num_pinned == 2
    add(scheduler, 4, num_prompt=8, max_tokens=1)
    finish(scheduler)
    assert pin(scheduler, request, 10.0) == 8, "still there"
    scheduler.schedule(49.0)
    assert scheduler.pool.num_pinned == 2
    scheduler.schedule(50.0)
    assert scheduler.pool.num_pinned == 0
    add(scheduler, 5, num_prompt=15, max_tokens=1)
    finish(scheduler)
    assert pin(scheduler, request, 99.0) == 0


def test_pins_give_way_to_what_could_not_run_otherwise():
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    pin(scheduler, make_request(2, range(1000, 1009)), 1e9)
    add(scheduler, 3, num_prompt=9, max_tokens=8)
    assert len(step(scheduler)[1]) == 1, "at once"
    assert len(finish(scheduler)) == 7
    assert scheduler.pool.num_pinned == 0


def test_pins_do_not_give_way_while_others_run():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    pin(scheduler, make_request(2, range(1000, 1009)), 1e9)
    add(scheduler, 3, num_prompt=2, max_tokens=3)
    step(scheduler)
    add(scheduler, 4, num_prompt=9, max_tokens=1)
    step(scheduler)
    assert inside(scheduler) == {3}
    assert scheduler.pool.num_pinned == 2
    assert len(finish(scheduler)) == 2
    assert scheduler.pool.num_pinned == 2, "three blocks are enough for request 4"


def test_pins_give_way_to_the_only_one_inside():
    """It need not leave, and what is on its way for it arrives, however far ahead steps are planned."""
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    pin(scheduler, make_request(2, range(1000, 1009)), 1e9)
    add(scheduler, 3, num_prompt=8, max_tokens=8)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert scheduler.num_preemptions == 0
    assert scheduler.pool.num_pinned == 0
    assert [len(batch.chunks[0].new_blocks) for batch in (first, second)] == [2, 1]
    for batch in (first, second):
        assert len(scheduler.commit(batch, output_of(batch), 0.0)) == 1
    scheduler.check()


def test_pins_do_not_give_way_if_somebody_can_leave():
    scheduler = make_scheduler(num_blocks=6, block_size=4)
    add(scheduler, 1, num_prompt=5, max_tokens=1)
    finish(scheduler)
    pin(scheduler, make_request(2, range(1000, 1005)), 1e9)
    fill_from(scheduler, 3, 2)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert scheduler.pool.num_pinned == 1


def fill_from(scheduler, first_id, num_requests):
    for number in range(first_id, first_id + num_requests):
        add(scheduler, number, num_prompt=4, max_tokens=14)
