"""A model with states goes back over a wrong draft: what was right since then is computed again, within the step's tokens."""

from typing import Any

import pytest

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.core.kinds.groups import BlockGroup, CacheGroups
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import add, finish, make_scheduler, output_of, planned, running, step
from tests.engine.answers import make_request

GROUPS = CacheGroups(BlockGroup(), num_states=9)


def make(order: str = "first-come", **limits: Any) -> Scheduler:
    return make_scheduler(order, **{"groups": GROUPS, "block_size": 8, "num_blocks": 64, **limits})


def draft(scheduler: Scheduler, request_id: int, count: int) -> None:
    scheduler.draft(running(scheduler)[request_id, 0], (50,) * count, "test")


def commit(scheduler: Scheduler, batch: Batch, **drawn: tuple[int, ...]) -> None:
    """What is drawn for each request, named by its id; the others draw one token."""
    by_row = {running(scheduler)[int(name[1:]), 0].row: tokens for name, tokens in drawn.items()}
    scheduler.commit(batch, output_of(batch, lambda chunk: by_row.get(chunk.row, (7,))), 0.0)
    scheduler.check()


def go_back(scheduler: Scheduler, num_right: int = 2) -> Chunk:
    """Request 1 is given drafts of which so many are right; returns the chunk that has them."""
    draft(scheduler, 1, 7)
    batch = scheduler.schedule(0.0)
    chunk = planned(scheduler, batch)[1]
    commit(scheduler, batch, r1=(50,) * num_right + (99,))
    return chunk


@pytest.mark.parametrize(("caching", "ends"), [(True, [8, 16, 20]), (False, [12, 20])])
def test_a_prompt_s_chunks_end_where_a_state_can_be_kept_if_any_is(caching: bool, ends: list[int]) -> None:
    scheduler = make(max_batch_tokens=12, prefix_caching=caching)
    add(scheduler, 1, num_prompt=20)
    assert [step(scheduler)[0].chunks[0].end for _ in ends] == ends  # type: ignore[union-attr]


def test_a_chunk_that_reaches_no_block_s_end_is_as_long_as_it_may_be() -> None:
    scheduler = make(max_batch_tokens=5)
    add(scheduler, 1, num_prompt=20)
    assert [step(scheduler)[0].chunks[0].end for _ in range(5)] == [5, 8, 13, 16, 20]  # type: ignore[union-attr]


def test_the_next_chunk_begins_where_the_last_one_did_and_reads_the_same_state() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    wrong = go_back(scheduler)
    assert (wrong.start, wrong.length, wrong.num_drafts) == (8, 8, 7)
    again = planned(scheduler, scheduler.schedule(0.0))[1]
    assert (again.start, again.length, again.token_ids, again.samples) == (8, 4, (), True), (
        "the runner has these tokens"
    )
    assert again.state == wrong.state


def test_drafts_follow_what_is_computed_again_as_far_as_the_block_reaches() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    go_back(scheduler)
    draft(scheduler, 1, 7)
    again = planned(scheduler, scheduler.schedule(0.0))[1]
    assert (again.start, again.length, again.num_drafts) == (8, 8, 4)


def test_drafts_after_what_is_computed_again_leave_the_step_as_long_as_it_is() -> None:
    scheduler = make(max_batch_tokens=8)
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    go_back(scheduler)
    scheduler.resize(scheduler.limits._replace(max_batch_tokens=6))
    draft(scheduler, 1, 7)
    again = planned(scheduler, scheduler.schedule(0.0))[1]
    assert (again.start, again.length, again.num_drafts) == (8, 6, 2)


def test_drafts_that_are_right_to_the_end_leave_nothing_to_compute_again() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    go_back(scheduler, num_right=7)
    chunk = planned(scheduler, scheduler.schedule(0.0))[1]
    assert (chunk.start, chunk.length) == (16, 1)


def test_where_a_step_has_no_room_for_all_of_it_the_rest_follows() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    go_back(scheduler, num_right=5)
    scheduler.resize(scheduler.limits._replace(max_batch_tokens=3))
    parts = []
    while not parts or not parts[-1].samples:
        batch = scheduler.schedule(0.0)
        parts.append(planned(scheduler, batch)[1])
        commit(scheduler, batch)
    assert [(part.start, part.length) for part in parts] == [(8, 3), (11, 3), (14, 1)]
    assert running(scheduler)[1, 0].num_computed == 15


def test_drafts_wait_until_all_is_computed_again() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    go_back(scheduler)
    scheduler.resize(scheduler.limits._replace(max_batch_tokens=3))
    draft(scheduler, 1, 7)
    batch = scheduler.schedule(0.0)
    first = planned(scheduler, batch)[1]
    assert (first.length, first.num_drafts, first.samples) == (3, 0, False)
    commit(scheduler, batch)
    second = planned(scheduler, scheduler.schedule(0.0))[1]
    assert (second.start, second.length, second.num_drafts, second.samples) == (11, 3, 2, True)


def test_what_is_computed_again_takes_its_tokens_of_the_step() -> None:
    scheduler = make(max_batch_tokens=10)
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    go_back(scheduler)
    add(scheduler, 2, num_prompt=30)
    batch = scheduler.schedule(0.0)
    assert {request_id: chunk.length for request_id, chunk in planned(scheduler, batch).items()} == {1: 4, 2: 6}


def test_what_is_computed_again_and_drafts_leave_a_step_of_several_tenants_as_long_as_it_is() -> None:
    scheduler = make("fair", max_batch_tokens=8)
    for number in (1, 2):
        add(scheduler, number, num_prompt=8, max_tokens=40, tenant=str(number))
        step(scheduler)
    commit(scheduler, scheduler.schedule(0.0))
    go_back(scheduler)
    sequence = running(scheduler)[1, 0]
    num_again = sequence.num_again
    assert num_again
    draft(scheduler, 2, 7)
    batch = scheduler.schedule(0.0)
    lengths = {request_id: chunk.length for request_id, chunk in planned(scheduler, batch).items()}
    assert lengths == {1: num_again + 1, 2: 8 - num_again - 1}


def test_a_sequence_keeps_its_answer_whatever_was_computed_again() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=12)
    step(scheduler)
    told = 1
    while scheduler.has_work:
        draft(scheduler, 1, 3)
        batch = scheduler.schedule(0.0)
        (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: (50, 99) if chunk.num_drafts else (7,)), 0.0)
        told += len(delta.token_ids)
        scheduler.check()
    assert told == 12


def test_without_a_slot_for_the_state_before_it_nothing_is_guessed() -> None:
    scheduler = make(groups=CacheGroups(BlockGroup(), num_states=1), prefix_caching=False)
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    step(scheduler)
    draft(scheduler, 1, 7)
    chunk = planned(scheduler, scheduler.schedule(0.0))[1]
    assert (chunk.length, chunk.num_drafts) == (1, 0)


def test_states_do_not_come_from_elsewhere() -> None:
    scheduler = make()
    request = make_request(1, range(20))
    assert scheduler.adopt(request) == 0
    assert scheduler.pool.num_cached == 0


def test_a_sequence_that_left_meanwhile_is_not_abandoned_with_its_step() -> None:
    scheduler = make()
    add(scheduler, 1, num_prompt=8, max_tokens=40)
    add(scheduler, 2, num_prompt=8, max_tokens=40)
    step(scheduler)
    batch = scheduler.schedule(0.0)
    scheduler.cancel(1)
    scheduler.abandon(batch)
    scheduler.check()
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1), "whose state was written begins again"
    assert {delta.request_id for delta in finish(scheduler) if delta.finish} == {2}
