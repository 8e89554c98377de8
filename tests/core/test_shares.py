"""Rows and blocks between tenants, under the fair order: who arrives beside a flood does not wait for it to end."""

from itertools import pairwise

import pytest

from penstock.runtime.core.queue.order import ORDERS, Lanes
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.tenants.shares import LINGER_S
from tests.core.steps import add, finish, output_of, planned
from tests.engine.answers import LIMITS


def make(order: str = "fair", **limits: int) -> Scheduler:
    return Scheduler(LIMITS._replace(prefix_caching=False, **limits), Lanes(ORDERS[order]()))


def advance(scheduler: Scheduler) -> set[int]:
    """One step; the requests it computes."""
    batch = scheduler.schedule(0.0)
    assert batch is not None
    computed = set(planned(scheduler, batch))
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler.check()
    return computed


def tenants(scheduler: Scheduler) -> dict[str, int]:
    held: dict[str, int] = {}
    for sequence in scheduler.roster.running:
        held[sequence.request.tenant] = held.get(sequence.request.tenant, 0) + 1
    return held


def flood(scheduler: Scheduler, tenant: str = "flood", count: int = 20, first: int = 0, max_tokens: int = 40) -> None:
    for number in range(first, first + count):
        add(scheduler, number, num_prompt=4, max_tokens=max_tokens, tenant=tenant)


@pytest.mark.parametrize("limits", [{"max_sequences": 4}, {"max_sequences": 64, "num_blocks": 16, "block_size": 4}])
def test_a_newcomer_is_in_the_next_step_whatever_another_tenant_holds(limits: dict[str, int]) -> None:
    """Rows in the one case, blocks in the other."""
    scheduler = make(**limits)
    flood(scheduler)
    for _ in range(3):
        advance(scheduler)
    assert scheduler.num_waiting
    add(scheduler, 100, num_prompt=4, max_tokens=3, tenant="polite")
    assert 100 in advance(scheduler)


def test_a_prompt_goes_on_while_the_tenants_that_have_the_step_wait_for_its_blocks() -> None:
    """Of a step of 6 tokens the least that is wanted takes 5 and the next 1; neither has blocks before the largest ends."""
    scheduler = make(num_blocks=7, block_size=3, max_batch_tokens=6)
    add(scheduler, 1, num_prompt=13, max_tokens=2, tenant="large")
    advance(scheduler)
    add(scheduler, 2, num_prompt=5, max_tokens=2, tenant="least")
    add(scheduler, 3, num_prompt=6, max_tokens=2, tenant="next")
    assert advance(scheduler) == {1}
    finish(scheduler)


def test_drafts_of_several_tenants_leave_the_step_as_long_as_it_is() -> None:
    scheduler = make(max_batch_tokens=8)
    for number in (1, 2):
        add(scheduler, number, num_prompt=3, max_tokens=40, tenant=str(number))
    while len(scheduler.generating) < 2:
        advance(scheduler)
    for sequence in scheduler.generating:
        scheduler.draft(sequence, (5,) * 7, "test")
    batch = scheduler.schedule(0.0)
    assert [chunk.length for chunk in batch.chunks] == [7, 1]  # type: ignore[union-attr]


def test_a_step_yields_to_another_tenant_only_once_nobody_has_asked_for_a_while() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=3, max_tokens=40, tenant="a")
    add(scheduler, 2, num_prompt=3, max_tokens=2, tenant="b")
    while scheduler.num_waiting or scheduler.num_running > 1 or not scheduler.generating:
        advance(scheduler)
    advance(scheduler)
    assert (scheduler.is_shared, scheduler.sole_tenant, scheduler.yields) == (True, None, False)
    scheduler.schedule(LINGER_S)
    assert (scheduler.is_shared, scheduler.sole_tenant, scheduler.yields) == (False, "a", True)


def test_answers_that_a_step_has_no_room_for_take_turns() -> None:
    """A tenant has more answers than its share of a step: none of them rests twice in a row."""
    scheduler = make(max_sequences=16, max_batch_tokens=16, num_blocks=256)
    flood(scheduler, "a", count=14)
    while len(scheduler.generating) < 14:
        advance(scheduler)
    add(scheduler, 100, num_prompt=64, max_tokens=3, tenant="b")
    advance(scheduler)
    steps = [advance(scheduler) for _ in range(4)]
    assert all(len(step) == 9 for step in steps)
    assert all(one | other == {*range(14), 100} for one, other in pairwise(steps))


def test_without_shares_it_waits_for_a_row() -> None:
    scheduler = make("first-come", max_sequences=4)
    flood(scheduler)
    advance(scheduler)
    add(scheduler, 100, num_prompt=4, max_tokens=3, tenant="polite")
    assert 100 not in advance(scheduler)


def test_two_floods_come_to_hold_the_same_and_then_leave_each_other_alone() -> None:
    scheduler = make(max_sequences=8, num_blocks=512)
    flood(scheduler, "a")
    advance(scheduler)
    assert tenants(scheduler) == {"a": 8}
    flood(scheduler, "b", first=100)
    for _ in range(6):
        advance(scheduler)
    assert tenants(scheduler) == {"a": 4, "b": 4}
    running = set(scheduler.roster.running)
    for _ in range(20):
        advance(scheduler)
        assert set(scheduler.roster.running) == running


def test_the_oldest_of_a_tenant_stays_and_everybody_ends() -> None:
    scheduler = make(max_sequences=2)
    flood(scheduler, "a", count=3, max_tokens=6)
    advance(scheduler)
    for number in range(100, 110):
        add(scheduler, number, num_prompt=4, max_tokens=2, tenant="b")
        is_there = 0 in scheduler._requests
        assert (0 in advance(scheduler)) == is_there, "the oldest is never preempted for another tenant"
    while scheduler.has_work:
        advance(scheduler)


def test_a_tenant_is_not_preempted_by_itself_nor_for_what_would_be_more_than_it_holds() -> None:
    scheduler = make(max_sequences=64, num_blocks=8, block_size=4, max_context=32)
    flood(scheduler, count=3, max_tokens=20)
    advance(scheduler)
    held = tenants(scheduler)
    add(scheduler, 100, num_prompt=24, max_tokens=3, tenant="large")
    assert 100 not in advance(scheduler)
    assert tenants(scheduler) == held
