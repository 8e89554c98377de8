"""What requests begin with in common is computed once, though they come together; what fails is computed by the others."""

from collections import deque
from random import Random

import pytest

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import inside, make_scheduler, output_of, planned, step
from tests.engine.answers import make_request

ROOMY = Limits(
    num_blocks=2000,
    block_size=4,
    max_context=2000,
    max_batch_tokens=64,
    max_sequences=40,
    max_waiting=1000,
    max_waiting_tokens=10**6,
)


def launch_all(scheduler: Scheduler, depth: int) -> list[Batch]:
    """Run to the end with as many steps on their way; returns all batches."""
    flying: deque[Batch] = deque()
    batches = []
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        if batch is not None:
            batches.append(batch)
            flying.append(batch)
        if batch is None or len(flying) >= depth:
            scheduler.commit(flying[0], output_of(flying.popleft()), 0.0)
            scheduler.check()
    return batches


def family(choose: Random, count: int) -> list[Request]:
    """Requests that begin alike, more or less."""
    stem = [choose.randrange(50) for _ in range(60)]
    return [
        make_request(
            number,
            stem[: choose.randrange(61)] + [choose.randrange(50) for _ in range(choose.randrange(2, 20))],
            max_tokens=choose.randrange(1, 4),
        )
        for number in range(count)
    ]


def least_tokens(prompts: list[tuple[int, ...]], size: int) -> int:
    """Prompt positions to compute if every block is computed once, except that each prompt needs its last token."""
    known: set[tuple[int, ...]] = set()
    total = 0
    for prompt in prompts:
        cached = 0
        while cached < (len(prompt) - 1) // size and prompt[: (cached + 1) * size] in known:
            cached += 1
        total += len(prompt) - cached * size
        known.update(prompt[: end * size] for end in range(1, len(prompt) // size + 1))
    return total


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_batch_tokens", [40, 64, 2000])
def test_what_is_shared_is_computed_once_though_all_come_together(depth, max_batch_tokens):
    num_exact = 0
    for seed in range(30):
        choose = Random(seed)
        limits = ROOMY._replace(block_size=choose.choice((2, 4, 16)), max_batch_tokens=max_batch_tokens)
        requests = family(choose, choose.randrange(2, 40))
        scheduler = Scheduler(limits)
        for request in requests:
            scheduler.add(request, 0.0)
        prompts = [chunk for batch in launch_all(scheduler, depth) for chunk in batch.chunks if chunk.token_ids]
        least = least_tokens([request.prompt for request in requests], limits.block_size)
        computed = sum(chunk.length for chunk in prompts)
        num_single = sum(chunk.length == 1 for chunk in prompts)
        assert least <= computed <= least + num_single * limits.block_size * len(requests)
        num_exact += computed == least
    assert num_exact >= 20


def test_all_who_begin_alike_start_in_one_step():
    scheduler = Scheduler(ROOMY._replace(max_batch_tokens=200))
    for number in range(20):
        scheduler.add(make_request(number, (*range(100), 200 + number, 7), max_tokens=2), 0.0)
    batch, deltas = step(scheduler)
    assert [chunk.length for chunk in batch.chunks] == [102] + [2] * 19
    assert len(deltas) == 20
    assert [delta.prefix.num_tokens for delta in deltas] == [0] + [100] * 19


@pytest.mark.parametrize("order", ORDERS)
def test_nobody_waits_for_anybody(order):
    """Whoever would be admitted if nothing were shared is admitted, no later."""
    for seed in range(40):
        choose = Random(seed)
        requests = family(choose, 25)
        alike, apart = (Scheduler(ROOMY._replace(prefix_caching=on), ORDERS[order]()) for on in (True, False))
        for scheduler in (alike, apart):
            for request in requests:
                scheduler.add(request, 0.0)
        for _ in range(4):
            alike.schedule(0.0)
            apart.schedule(0.0)
            assert inside(alike) >= inside(apart)


def test_a_single_token_is_offered_only_once_it_is_computed():
    """A step of single tokens may read and write in one launch, so there nobody reads what another writes."""
    scheduler = make_scheduler(block_size=4, max_batch_tokens=7, max_sequences=4)
    scheduler.add(make_request(1, range(8), max_tokens=3), 0.0)
    step(scheduler)
    scheduler.add(make_request(2, range(9), max_tokens=3), 0.0)
    batch = scheduler.schedule(0.0)
    assert [(chunk.start, chunk.length) for chunk in batch.chunks] == [(7, 1), (4, 5)]
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler.add(make_request(3, range(9), max_tokens=3), 0.0)
    assert planned(scheduler, scheduler.schedule(0.0))[3].start == 8


def make_trusting(depth: int) -> tuple[Scheduler, list[Batch]]:
    """The first computes what the others take as cached: in its own step and, at depth 2, in the next."""
    scheduler = make_scheduler(block_size=4, max_batch_tokens=32)
    batches = []
    for number in range(depth):
        for request_id in (2 * number + 1, 2 * number + 2):
            scheduler.add(make_request(request_id, (*range(16), 50 + request_id), max_tokens=4), 0.0)
        batches.append(scheduler.schedule(0.0))
    assert [batch.num_tokens for batch in batches] == [17 + 1, 1 + 1 + 1 + 1][:depth]
    return scheduler, batches


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("leaves", [False, True])
def test_whoever_trusted_a_chunk_that_failed_computes_it(depth, leaves):
    scheduler, batches = make_trusting(depth)
    if leaves:
        scheduler.cancel(1)
    failed = output_of(batches[0])._replace(failures=((0, "planted"),))
    deltas = scheduler.commit(batches[0], failed, 0.0)
    assert [delta.request_id for delta in deltas] == ([] if leaves else [1])
    assert inside(scheduler) == set()
    assert scheduler.num_waiting == 2 * depth - 1
    assert scheduler.num_preemptions == 0
    assert scheduler.pool.num_cached == 0
    scheduler.check()
    for batch in batches[1:]:
        assert scheduler.flights.live(batch) == ()
        assert scheduler.commit(batch, output_of(batch), 0.0) == ()
    again = planned(scheduler, scheduler.schedule(0.0))
    assert [chunk.start for chunk in again.values()] == [0] + [16] * (2 * depth - 2)


def test_whoever_came_back_to_what_it_was_computing_itself_computes_it_again():
    """A failure of an earlier stay is no end."""
    scheduler, (batch,) = make_trusting(1)
    first = next(iter(scheduler.roster.running))
    scheduler.roster.preempt(first)
    again = scheduler.schedule(0.0)
    assert planned(scheduler, again)[1].start == 16
    assert scheduler.commit(batch, output_of(batch)._replace(failures=((0, "planted"),)), 0.0) == ()
    assert inside(scheduler) == set()
    assert scheduler.commit(again, output_of(again), 0.0) == ()
    assert planned(scheduler, scheduler.schedule(0.0))[1].start == 0


def test_whoever_began_alike_before_the_failure_keeps_what_was_computed():
    scheduler = make_scheduler(block_size=4, max_batch_tokens=32)
    scheduler.add(make_request(1, (*range(8), 50), max_tokens=9), 0.0)
    step(scheduler)
    scheduler.add(make_request(2, (*range(8), *range(60, 70)), max_tokens=9), 0.0)
    scheduler.add(make_request(3, (*range(8), *range(60, 70)), max_tokens=9), 0.0)
    batch = scheduler.schedule(0.0)
    assert [chunk.start for chunk in planned(scheduler, batch).values()] == [9, 8, 16]
    scheduler.commit(batch, output_of(batch)._replace(failures=((1, "planted"),)), 0.0)
    assert inside(scheduler) == {1}
    scheduler.check()
    assert planned(scheduler, scheduler.schedule(0.0))[3].start == 8


def test_a_failed_token_of_an_answer_leaves_the_prompt_to_those_who_share_it():
    scheduler, (batch,) = make_trusting(1)
    scheduler.commit(batch, output_of(batch), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, output_of(batch)._replace(failures=((0, "planted"),)), 0.0)
    assert inside(scheduler) == {2}
    scheduler.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_tells_what_is_read_more_than_once(seed):
    scheduler = Scheduler(ROOMY, ORDERS["first-come"]())
    for request in family(Random(seed), 12):
        scheduler.add(request, 0.0)
    reported = []
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        held = [block for sequence in scheduler.roster.running for block in sequence.blocks]
        assert batch.num_shared == ROOMY.block_size * (len(held) - len(set(held)))
        reported.append(batch.num_shared)
        scheduler.commit(batch, output_of(batch), 0.0)
    assert max(reported) > 0
