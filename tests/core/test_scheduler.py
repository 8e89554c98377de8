"""What a step holds, who is let in, and what is refused."""

import random

import pytest

from penstock.errors import CapacityError, RequestError
from penstock.runtime.core.batch import Arrival, Chunk, Finish, FinishReason
from penstock.runtime.core.queue.batching import STATIC
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import add, finish, inside, make_scheduler, output_of, planned, planned_now, running, step
from tests.engine.answers import LIMITS, make_request

# The budget


@pytest.mark.parametrize("order", ORDERS)
def test_the_budget_is_never_exceeded_and_never_left_while_somebody_could_use_it(order):
    for seed in range(12):
        choose = random.Random(seed)
        budget = choose.choice((8, 9, 16, 40))
        scheduler = make_scheduler(order, max_batch_tokens=budget, num_blocks=choose.choice((16, 20, 60)))
        for request_id in range(20):
            add(scheduler, request_id, choose.randrange(1, 40), choose.randrange(1, 20), priority=choose.randrange(5))
        while scheduler.has_work:
            batch = scheduler.schedule(0.0)
            assert 0 < batch.num_tokens <= budget
            behind = [
                one for one in scheduler.roster.running if one.num_launched < len(one.tokens) and not one.holds_next
            ]
            assert batch.num_tokens == budget or not behind
            drafts = tuple(tuple(range(choose.randrange(6))) if chunk.samples else () for chunk in batch.chunks)
            scheduler.commit(batch, output_of(batch, lambda chunk: (chunk.end,), drafts=drafts), 0.0)
            scheduler.check()


def test_whoever_generates_has_a_place_in_every_step():
    """However many prompts wait and however long they are."""
    scheduler = make_scheduler(max_batch_tokens=8)
    add(scheduler, 1, max_tokens=30)
    step(scheduler)
    for request_id in range(2, 8):
        add(scheduler, request_id, num_prompt=100, max_tokens=2)
    for _ in range(29):
        batch = scheduler.schedule(0.0)
        chunk = planned(scheduler, batch)[1]
        assert (chunk.length, chunk.samples, chunk.token_ids) == (1, True, ())
        assert batch.num_tokens == 8
        scheduler.commit(batch, output_of(batch), 0.0)
    assert 1 not in inside(scheduler)


def test_a_prompt_is_computed_in_pieces_as_the_budget_allows():
    scheduler = make_scheduler(max_batch_tokens=8, max_sequences=2)
    add(scheduler, 1, num_prompt=19)
    add(scheduler, 2, num_prompt=3)
    chunks = []
    for _ in range(3):
        batch = scheduler.schedule(0.0)
        chunks.append(
            {number: (chunk.start, chunk.end, chunk.samples) for number, chunk in planned(scheduler, batch).items()}
        )
        scheduler.commit(batch, output_of(batch), 0.0)
    assert chunks == [{1: (0, 8, False)}, {1: (8, 16, False)}, {1: (16, 19, True), 2: (0, 3, True)}]


def test_prompts_under_way_come_before_those_let_in_and_go_by_rank():
    scheduler = make_scheduler("priority", max_batch_tokens=8)
    add(scheduler, 1, num_prompt=20, priority=0)
    step(scheduler)
    add(scheduler, 2, num_prompt=20, priority=5)
    batch = scheduler.schedule(0.0)
    assert list(planned(scheduler, batch)) == [1], "the first to be inside finishes its prompt's piece"
    scheduler.commit(batch, output_of(batch), 0.0)
    batch = scheduler.schedule(0.0)
    assert {number: chunk.length for number, chunk in planned(scheduler, batch).items()} == {1: 4, 2: 4}
    scheduler.commit(batch, output_of(batch), 0.0)
    add(scheduler, 3, num_prompt=20, priority=9)
    batch = scheduler.schedule(0.0)
    assert {number: chunk.length for number, chunk in planned(scheduler, batch).items()} == {1: 1, 2: 7}


def test_of_prompts_under_way_the_first_in_rank_is_served_first():
    """Under fairness the second tenant enters second, but came third."""
    scheduler = Scheduler(LIMITS._replace(max_batch_tokens=8), ORDERS["fair"](), STATIC)
    for number, tenant in ((1, "a"), (2, "a"), (3, "b")):
        add(scheduler, number, num_prompt=8, tenant=tenant)
    served = [list(planned_now(scheduler)) for _ in range(3)]
    assert served == [[1], [2], [3]]
    assert [request_id for request_id, _ in running(scheduler)] == [1, 3, 2]


def test_nothing_to_do_is_no_batch():
    scheduler = make_scheduler()
    assert scheduler.schedule(0.0) is None
    add(scheduler, 1, max_tokens=1)
    first = scheduler.schedule(0.0)
    assert scheduler.schedule(0.0) is None, "its last token is on the way"
    scheduler.commit(first, output_of(first), 0.0)
    assert scheduler.schedule(0.0) is None
    assert not scheduler.has_work


def test_steps_are_numbered():
    scheduler = make_scheduler()
    add(scheduler, 1)
    assert [scheduler.schedule(0.0).step for _ in range(3)] == [1, 2, 3]


# Chunks


def test_what_a_runner_is_told_of_an_arrival():
    scheduler = make_scheduler(max_batch_tokens=8)
    add(scheduler, 1, num_prompt=10, adapter="a", seed=4)
    batch, _ = step(scheduler)
    (chunk,) = batch.chunks
    sequence = running(scheduler)[1, 0]
    assert chunk.arrival == Arrival(sequence.request.params, 0, 10, (), "a")
    assert chunk.new_blocks == tuple(sequence.blocks)
    assert len(chunk.new_blocks) == 3
    assert chunk.token_ids == tuple(range(1000, 1008))
    batch, _ = step(scheduler)
    assert batch.chunks == (Chunk(chunk.row, 8, 2, (1008, 1009), (), True, None),)
    batch, _ = step(scheduler)
    assert batch.chunks == (Chunk(chunk.row, 10, 1, (), (), True, None),)
    batch, _ = step(scheduler)
    assert batch.chunks == (Chunk(chunk.row, 11, 1, (), (), True, None),)
    batch, _ = step(scheduler)
    assert batch.chunks == (Chunk(chunk.row, 12, 1, (), (sequence.blocks[3],), True, None),)


@pytest.mark.parametrize("options", [{"presence_penalty": 1.0}, {"banned_sequences": ((1, 2),)}])
def test_history_is_told_where_drawing_needs_it(options):
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=10, max_tokens=1)
    finish(scheduler)
    scheduler.add(make_request(2, range(1000, 1010), **options), 0.0)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.start == 8
    assert chunk.arrival.history == tuple(range(1000, 1008))
    scheduler.add(make_request(3, range(1000, 1010)), 0.0)
    assert scheduler.schedule(0.0).chunks[-1].arrival.history == ()


def test_a_step_may_be_planned_before_the_last_is_committed():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=3, max_tokens=3)
    batches = [scheduler.schedule(0.0) for _ in range(3)]
    assert [batch.chunks[0].start for batch in batches] == [0, 3, 4]
    assert scheduler.schedule(0.0) is None
    tokens = [scheduler.commit(batch, output_of(batch, lambda chunk: (chunk.end,)), 0.0) for batch in batches]
    assert [delta.token_ids for deltas in tokens for delta in deltas] == [(3,), (4,), (5,)]
    assert tokens[-1][-1].finish == Finish(FinishReason.LENGTH)


# Admission


def test_nobody_overtakes_the_first():
    scheduler = make_scheduler(num_blocks=8, block_size=4)
    add(scheduler, 1, num_prompt=16, max_tokens=4)
    step(scheduler)
    add(scheduler, 2, num_prompt=20, max_tokens=1)
    add(scheduler, 3, num_prompt=1, max_tokens=1)
    step(scheduler)
    assert inside(scheduler) == {1}
    assert [delta.request_id for delta in finish(scheduler) if delta.finish] == [1, 2, 3]


def test_a_better_rank_is_admitted_first():
    for order, options, expected in [
        ("first-come", {}, [1, 2, 3]),
        ("priority", {"priority": (1, 3, 2)}, [2, 3, 1]),
        ("deadline", {"deadline_s": (30.0, None, 10.0)}, [3, 1, 2]),
        ("fair", {"tenant": ("a", "a", "b")}, [1, 3, 2]),
    ]:
        scheduler = make_scheduler(order, max_sequences=1)
        for number in (1, 2, 3):
            add(scheduler, number, max_tokens=1, **{name: values[number - 1] for name, values in options.items()})
        assert [delta.request_id for delta in finish(scheduler)] == expected


@pytest.mark.parametrize(("num_prompt", "enters"), [(8, True), (9, False)])
def test_a_block_for_everyone_inside_is_left_over(num_prompt, enters):
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    add(scheduler, 1, num_prompt=4)
    add(scheduler, 2, num_prompt=4)
    batch, _ = step(scheduler)
    assert len(batch.chunks) == 2
    scheduler.cancel(2)
    add(scheduler, 3, num_prompt=num_prompt, max_tokens=2)
    batch = scheduler.schedule(0.0)  # request 1 takes a second block; of the three left one stays spare
    assert (3 in planned(scheduler, batch)) == enters


def test_rows_bound_who_is_inside():
    scheduler = make_scheduler(max_sequences=2)
    for number in (1, 2, 3):
        add(scheduler, number)
    batch, _ = step(scheduler)
    assert sorted(chunk.row for chunk in batch.chunks) == [0, 1]
    assert inside(scheduler) == {1, 2}
    assert scheduler.load.num_waiting == 1


def test_load_says_how_busy_it_is():
    scheduler = make_scheduler(max_sequences=1, num_blocks=8, block_size=4)
    assert scheduler.load == (0, 0, 0, 0.0, 0)
    assert not scheduler.has_work
    add(scheduler, 1, num_prompt=7)
    add(scheduler, 2, num_prompt=5)
    assert scheduler.load == (0, 2, 12, 0.0, 0)
    step(scheduler)
    assert scheduler.load == (1, 1, 5, 0.25, 0)
    assert scheduler.has_work
    scheduler.cancel(2)
    assert scheduler.load == (1, 0, 0, 0.25, 0)


def test_prompts_under_way_are_told():
    """Once a request, while it has been let in and its prompt is not computed."""
    scheduler = make_scheduler(max_batch_tokens=8, max_sequences=3)
    add(scheduler, 1, num_prompt=19, n=2)
    add(scheduler, 2, num_prompt=3)
    reported = [scheduler.prompts]
    for _ in range(4):
        batch = scheduler.schedule(0.0)
        reported.append(scheduler.prompts)
        scheduler.commit(batch, output_of(batch), 0.0)
    assert reported == [(), ((1, 0, 19),), ((1, 8, 19),), ((1, 16, 19), (2, 0, 3)), ()]


# Refusals


def test_an_id_in_use_is_refused():
    scheduler = make_scheduler()
    add(scheduler, 1)
    with pytest.raises(RequestError, match="request id 1 is in use; ids are never reused"):
        add(scheduler, 1)
    scheduler.check()


def test_too_many_waiting_are_refused():
    scheduler = make_scheduler(max_waiting=3, max_sequences=1)
    for number in (1, 2, 3, 4):  # three may wait, and a row is free
        add(scheduler, number)
    with pytest.raises(CapacityError, match="4 requests wait already, of at most 4; try later"):
        add(scheduler, 5)
    step(scheduler)
    with pytest.raises(CapacityError, match="3 requests wait already, of at most 3; try later"):
        add(scheduler, 6)
    scheduler.cancel(4)
    with pytest.raises(CapacityError):
        add(scheduler, 7, n=2)
    add(scheduler, 8)
    assert 5 not in scheduler._requests
    scheduler.check()


def test_too_many_tokens_waiting_are_refused():
    scheduler = make_scheduler(max_waiting_tokens=10, max_sequences=1)
    add(scheduler, 1, num_prompt=30)
    with pytest.raises(CapacityError, match="30 prompt tokens wait already, of at most 10; try later"):
        add(scheduler, 2, num_prompt=1)
    step(scheduler)
    add(scheduler, 3, num_prompt=6)
    add(scheduler, 4, num_prompt=4)
    with pytest.raises(CapacityError):
        add(scheduler, 5, num_prompt=1)
    scheduler.check()


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(200, 1), (190, 11), (40, 90)])
def test_what_could_never_run_is_refused(num_prompt, max_tokens):
    scheduler = make_scheduler(num_blocks=32)
    with pytest.raises(RequestError, match=r"larger --(max-context|num-blocks)"):
        add(scheduler, 1, num_prompt, max_tokens)
    assert not scheduler.has_work


# The books


def test_books_that_do_not_balance_are_noticed():
    def busy():
        scheduler = make_scheduler(max_sequences=2)
        for number in (1, 2, 3):
            add(scheduler, number)
        step(scheduler)
        return scheduler

    for corrupt in (
        lambda scheduler: scheduler.roster._rows.append(0),
        lambda scheduler: setattr(running(scheduler)[1, 0], "row", 1),
        lambda scheduler: setattr(running(scheduler)[1, 0], "row", None),
        lambda scheduler: setattr(scheduler.roster, "num_waiting_tokens", 0),
        lambda scheduler: setattr(scheduler.roster.order.peek(), "blocks", [1]),
        lambda scheduler: setattr(scheduler.roster.order.peek(), "row", 1),
        lambda scheduler: running(scheduler)[1, 0].blocks.clear(),
    ):
        scheduler = busy()
        scheduler.check()
        corrupt(scheduler)
        with pytest.raises(RuntimeError):
            scheduler.check()
