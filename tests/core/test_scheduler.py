"""What a step holds, who is let in, who is pushed out, and what is told."""

import random

import pytest

from penstock.core.batch import Arrival, Chunk, Delta, Fault, Finish, FinishReason, Logprob, StepOutput
from penstock.core.batching import STATIC
from penstock.core.order import ORDERS
from penstock.core.scheduler import MAX_IDLE_DEADLINES, Scheduler
from penstock.errors import CapacityError, RequestError
from tests.core.steps import output_of, planned, running, step
from tests.engine.answers import LIMITS, make_request


def make_scheduler(order="first-come", **limits) -> Scheduler:
    return Scheduler(LIMITS._replace(**limits), ORDERS[order]())


def add(scheduler, request_id, num_prompt=3, max_tokens=10, now=0.0, **wishes):
    """Prompts of different requests have nothing in common."""
    prompt = range(1000 * request_id, 1000 * request_id + num_prompt)
    scheduler.add(make_request(request_id, prompt, max_tokens=max_tokens, **wishes), now)


def inside(scheduler):
    return {request_id for request_id, _ in running(scheduler)}


def finish(scheduler, max_steps=300):
    """Run to the end; returns all deltas."""
    deltas = []
    for _ in range(max_steps):
        if not scheduler.has_work:
            return deltas
        deltas.extend(step(scheduler)[1])
    raise AssertionError("no end in sight")


# The budget


@pytest.mark.parametrize("seed", range(20))
def test_the_budget_is_never_exceeded_and_never_left_while_somebody_could_use_it(seed):
    choose = random.Random(seed)
    budget = choose.choice((8, 9, 16, 40))
    scheduler = make_scheduler(max_batch_tokens=budget, num_blocks=choose.choice((20, 60)))
    for request_id in range(20):
        add(scheduler, request_id, choose.randrange(1, 40), choose.randrange(1, 20))
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        assert 0 < batch.num_tokens <= budget
        behind = [one for one in scheduler._running if one.num_launched < len(one.tokens) and not one.holds_next]
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


@pytest.mark.parametrize("wishes", [{"presence_penalty": 1.0}, {"banned_sequences": ((1, 2),)}])
def test_history_is_told_where_drawing_needs_it(wishes):
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=10, max_tokens=1)
    finish(scheduler)
    scheduler.add(make_request(2, range(1000, 1010), **wishes), 0.0)
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
    for order, wishes, expected in [
        ("first-come", {}, [1, 2, 3]),
        ("priority", {"priority": (1, 3, 2)}, [2, 3, 1]),
        ("deadline", {"deadline_s": (30.0, None, 10.0)}, [3, 1, 2]),
        ("fair", {"tenant": ("a", "a", "b")}, [1, 3, 2]),
    ]:
        scheduler = make_scheduler(order, max_sequences=1)
        for number in (1, 2, 3):
            add(scheduler, number, max_tokens=1, **{name: values[number - 1] for name, values in wishes.items()})
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


# Refusals


def test_an_id_in_use_is_refused():
    scheduler = make_scheduler()
    add(scheduler, 1)
    with pytest.raises(RequestError, match="request id 1 is in use; ids are never reused"):
        add(scheduler, 1)
    scheduler.check()


def test_too_many_waiting_are_refused():
    scheduler = make_scheduler(max_waiting=3, max_sequences=1)
    for number in (1, 2, 3):
        add(scheduler, number)
    with pytest.raises(CapacityError, match="3 requests wait already, of at most 3; try later"):
        add(scheduler, 4)
    step(scheduler)
    add(scheduler, 5)
    with pytest.raises(CapacityError):
        add(scheduler, 6)
    scheduler.cancel(5)
    with pytest.raises(CapacityError):
        add(scheduler, 7, n=2)
    add(scheduler, 8)
    assert 4 not in scheduler._requests
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


# Pushing out


def fill(scheduler, *requests):
    """Let in requests of one block each, with drawn tokens up to the block's end."""
    for number, wishes in enumerate(requests, 1):
        add(scheduler, number, **{"num_prompt": 4, "max_tokens": 12, **wishes})
    step(scheduler)
    assert inside(scheduler) == set(range(1, len(requests) + 1))


def test_the_last_to_come_is_pushed_out_first():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {})
    batch = scheduler.schedule(0.0)
    assert set(planned(scheduler, batch)) == {1, 2}
    assert inside(scheduler) == {1, 2}
    assert scheduler.num_preemptions == scheduler.load.num_preemptions == 1
    scheduler.check()


def test_whoever_needs_a_block_and_is_last_leaves_itself():
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    add(scheduler, 1, num_prompt=5, max_tokens=4)
    add(scheduler, 2, num_prompt=3, max_tokens=4)
    step(scheduler)
    assert inside(scheduler) == {1}, "one block is spare"
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=5, max_tokens=6)
    add(scheduler, 2, num_prompt=4, max_tokens=6)
    step(scheduler)
    assert inside(scheduler) == {1, 2}
    step(scheduler)
    step(scheduler)
    assert scheduler.num_preemptions == 0
    while scheduler.num_preemptions == 0:
        step(scheduler)
    assert inside(scheduler) == {1}
    assert [delta.request_id for delta in finish(scheduler) if delta.finish] == [1, 2]


def victims(scheduler, needy):
    """Who would leave for whom, one after the other, until the needy one leaves itself."""
    gone = []
    while not gone or gone[-1] != needy:
        victim = scheduler._victim(running(scheduler)[needy, 0])
        gone.append(victim.request.request_id)
        scheduler._leave(victim)
    return gone


def test_the_least_important_is_pushed_out_first():
    scheduler = make_scheduler("priority")
    fill(scheduler, {"priority": 2}, {"priority": 0}, {"priority": 1}, {"priority": 3})
    assert victims(scheduler, 1) == [2, 3, 1]


def test_under_fairness_the_tenant_served_most_is_pushed_out_first():
    scheduler = make_scheduler("fair")
    fill(scheduler, {"tenant": "a"}, {"tenant": "b"}, {"tenant": "c"}, {"tenant": "d"})
    scheduler._order.charge(running(scheduler)[3, 0], 100)
    scheduler._order.charge(running(scheduler)[1, 0], 200)
    assert victims(scheduler, 1) == [3, 4, 2, 1]


def test_of_equals_the_cheapest_to_compute_again_is_pushed_out_first():
    scheduler = make_scheduler()
    fill(scheduler, {"num_prompt": 1}, {"num_prompt": 5}, {"num_prompt": 9}, {"num_prompt": 5}, {"num_prompt": 7})
    assert victims(scheduler, 2) == [4, 5, 3, 2]


def test_the_first_is_never_pushed_out():
    scheduler = make_scheduler("priority", num_blocks=6, block_size=2, max_sequences=4)
    add(scheduler, 1, num_prompt=3, max_tokens=8, priority=1)
    for number in range(2, 8):
        add(scheduler, number, num_prompt=3, max_tokens=8)
    step(scheduler)
    while 1 in inside(scheduler):
        assert 1 in planned_now(scheduler)
    assert scheduler.num_preemptions > 0


def planned_now(scheduler):
    batch = scheduler.schedule(0.0)
    chunks = planned(scheduler, batch)
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler.check()
    return chunks


def test_what_was_planned_for_one_pushed_out_is_withdrawn():
    """Its place in the step's budget goes to others."""
    scheduler = make_scheduler("priority", num_blocks=8, block_size=4, max_batch_tokens=12)
    add(scheduler, 1, num_prompt=4, max_tokens=20, priority=0)
    step(scheduler)
    add(scheduler, 2, num_prompt=4, max_tokens=20, priority=9)
    step(scheduler)
    while not scheduler.num_preemptions:
        batch = scheduler.schedule(0.0)
        rows = [chunk.row for chunk in batch.chunks]
        assert len(set(rows)) == len(rows)
        assert len(batch.chunks) == len(scheduler._flights[batch.step])
        scheduler.commit(batch, output_of(batch), 0.0)
        scheduler.check()
    assert 2 in inside(scheduler)
    assert set(planned(scheduler, scheduler.schedule(0.0))) >= {2}


def test_one_pushed_out_starts_from_what_is_still_cached():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {})
    step(scheduler)
    assert inside(scheduler) == {1, 2}
    scheduler.cancel(1)
    batch = scheduler.schedule(0.0)
    chunk = planned(scheduler, batch)[3]
    assert chunk.start == 4
    assert chunk.arrival is not None
    assert chunk.token_ids == (7,)
    assert chunk.samples


def test_what_was_computed_for_one_who_left_is_nobodys():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {})
    running(scheduler)[3, 0]
    late = scheduler.schedule(0.0)
    scheduler.cancel(2)
    assert scheduler.live(late) == (0,)
    deltas = scheduler.commit(late, output_of(late), 0.0)
    assert [delta.request_id for delta in deltas] == [1]
    assert scheduler._flights == {}


# Drafts


def draw_with_drafts(batch, drawn, drafts):
    return StepOutput(
        tuple(drawn if chunk.samples else () for chunk in batch.chunks),
        drafts=tuple(drafts if chunk.samples else () for chunk in batch.chunks),
    )


def start_drafting(max_tokens=20, drafts=(1, 2, 3), **limits):
    scheduler = make_scheduler(**limits)
    add(scheduler, 1, num_prompt=3, max_tokens=max_tokens)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), drafts), 0.0)
    return scheduler


def test_drafts_are_verified_in_one_chunk():
    scheduler = start_drafting()
    batch = scheduler.schedule(0.0)
    (chunk,) = batch.chunks
    assert (chunk.start, chunk.length, chunk.token_ids, chunk.num_drafts, chunk.samples) == (3, 4, (1, 2, 3), 3, True)
    assert scheduler.schedule(0.0) is None, "its length is unknown until its drafts are judged"
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4)), 0.0)
    assert delta.token_ids == (1, 2, 3, 4)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length, chunk.num_drafts) == (7, 1, 0), "used once"


@pytest.mark.parametrize("num_drawn", [1, 2, 3, 4])
def test_rejected_drafts_are_computed_again(num_drawn):
    scheduler = start_drafting(block_size=2)
    batch = scheduler.schedule(0.0)
    drawn = (1, 2, 3, 4)[:num_drawn]
    scheduler.commit(batch, output_of(batch, lambda chunk: drawn), 0.0)
    sequence = running(scheduler)[1, 0]
    assert sequence.tokens[3:] == [9, *drawn]
    assert sequence.num_computed == 3 + num_drawn
    assert sequence.num_published == (3 + num_drawn) // 2
    scheduler.check()
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length) == (3 + num_drawn, 1)


@pytest.mark.parametrize(("max_tokens", "num_drafts"), [(2, 0), (3, 1), (4, 2), (5, 3), (6, 3)])
def test_drafts_stop_where_the_answer_must_end(max_tokens, num_drafts):
    scheduler = start_drafting(max_tokens=max_tokens)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.num_drafts == num_drafts
    assert chunk.end <= 3 + max_tokens - 1


def test_drafts_leave_everybody_a_place():
    scheduler = make_scheduler(max_batch_tokens=9, max_sequences=4)
    for number in range(1, 5):
        add(scheduler, number, num_prompt=2)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3)), 0.0)
    batch = scheduler.schedule(0.0)
    assert [chunk.num_drafts for chunk in batch.chunks] == [3, 2, 0, 0]
    assert batch.num_tokens == 9


def test_leaving_while_drafts_are_judged():
    scheduler = start_drafting()
    batch = scheduler.schedule(0.0)
    (delta,) = scheduler.cancel(1)
    assert delta.token_ids == ()
    assert scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2)), 0.0) == ()
    scheduler.check()


def test_guesses_about_what_is_already_being_drawn_are_dropped():
    scheduler = make_scheduler()
    add(scheduler, 1)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    scheduler.commit(first, draw_with_drafts(first, (9,), (1, 2)), 0.0)
    third = scheduler.schedule(0.0)
    assert third.chunks[0].num_drafts == 0
    scheduler.commit(second, draw_with_drafts(second, (9,), (1, 2)), 0.0)
    scheduler.commit(third, draw_with_drafts(third, (9,), (1, 2)), 0.0)
    assert scheduler.schedule(0.0).chunks[0].num_drafts == 2


def test_an_end_among_the_drafts_cuts_what_follows():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=3, stop_token_ids=(2,), logprobs=0)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3)), 0.0)
    batch = scheduler.schedule(0.0)
    logprobs = tuple(Logprob(token, -1.0, ()) for token in (1, 2, 3, 4))
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4), logprobs=(logprobs,)), 0.0)
    assert delta.token_ids == (1, 2)
    assert delta.logprobs == logprobs[:2]
    assert delta.finish == Finish(FinishReason.STOP, stop_token_id=2)
    assert not scheduler.has_work
    scheduler.check()


def test_only_what_an_ended_sequence_holds_is_published():
    """Drafts computed past its end are no content."""
    scheduler = make_scheduler(block_size=2)
    add(scheduler, 1, num_prompt=3, stop_token_ids=(1,))
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3)), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, output_of(batch, lambda chunk: (1, 2, 3, 4)), 0.0)
    assert scheduler.pool.num_cached == 2  # 1000 1001 | 1002 9 | and the stop token is not computed
    scheduler.check()


def test_drafts_of_one_pushed_out_are_forgotten():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {})
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1,) * 3), 0.0)
    while not scheduler.num_preemptions:
        batch = scheduler.schedule(0.0)
        scheduler.commit(batch, draw_with_drafts(batch, (9,), (1,) * 9), 0.0)
        scheduler.check()
    assert [delta.request_id for delta in finish(scheduler) if delta.finish] == [1, 2]


# Results


def test_a_chunk_that_failed_ends_its_sequence_alone():
    scheduler = make_scheduler()
    for number in (1, 2, 3):
        add(scheduler, number)
    batch = scheduler.schedule(0.0)
    deltas = scheduler.commit(batch, output_of(batch, failures=((1, "no good"),)), 0.0)
    assert [delta.request_id for delta in deltas] == [1, 2, 3]
    assert deltas[1].finish == Finish(FinishReason.ERROR, "no good", Fault.ENGINE)
    assert deltas[1].token_ids == ()
    assert deltas[0].finish is deltas[2].finish is None
    assert inside(scheduler) == {1, 3}
    scheduler.check()


def test_a_chunk_that_drew_nothing_ends_its_sequence():
    scheduler = make_scheduler()
    add(scheduler, 1)
    batch = scheduler.schedule(0.0)
    (delta,) = scheduler.commit(batch, output_of(batch, lambda chunk: ()), 0.0)
    assert delta.finish == Finish(FinishReason.ERROR, "the model drew no token", Fault.ENGINE)
    assert not scheduler.has_work


def test_the_middle_of_a_prompt_tells_nothing():
    scheduler = make_scheduler(max_batch_tokens=4, max_sequences=4)
    add(scheduler, 1, num_prompt=9)
    assert [len(step(scheduler)[1]) for _ in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize(("min_tokens", "num_tokens"), [(0, 1), (1, 2), (3, 4)])
def test_stop_tokens_count_after_the_least_length(min_tokens, num_tokens):
    scheduler = make_scheduler()
    add(scheduler, 1, stop_token_ids=(7,), min_tokens=min_tokens)
    deltas = finish(scheduler)
    assert len(deltas) == num_tokens
    assert deltas[-1].finish == Finish(FinishReason.STOP, stop_token_id=7)


def test_stop_tokens_may_be_ignored():
    scheduler = make_scheduler()
    add(scheduler, 1, stop_token_ids=(7,), ignore_eos=True, max_tokens=5)
    deltas = finish(scheduler)
    assert len(deltas) == 5
    assert deltas[-1].finish == Finish(FinishReason.LENGTH)


def test_a_stop_token_at_the_limit_is_a_stop():
    scheduler = make_scheduler()
    add(scheduler, 1, stop_token_ids=(7,), max_tokens=1)
    assert finish(scheduler)[-1].finish.reason == FinishReason.STOP


def test_no_limit_is_the_context():
    scheduler = make_scheduler(max_context=20)
    add(scheduler, 1, num_prompt=3, max_tokens=None)
    assert len(finish(scheduler)) == 17
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    add(scheduler, 1, num_prompt=3, max_tokens=None)
    assert len(finish(scheduler)) == 10, "12 positions hold 13 tokens: the last drawn needs no place"


# Prefixes


def test_the_prefix_is_told_with_the_first_tokens():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=2)
    first, second = finish(scheduler)
    assert first.prefix[:2] == (0, "nothing cached begins alike")
    assert second.prefix is None
    scheduler.add(make_request(2, range(1000, 1009), max_tokens=1), 0.0)
    batch, (delta,) = step(scheduler)
    assert delta.prefix[:2] == (8, "")
    assert batch.num_tokens == 1


def test_a_shared_prefix_is_computed_once():
    scheduler = make_scheduler(num_blocks=64, block_size=16, max_context=1000, max_batch_tokens=1000)
    shared = tuple(range(512))
    scheduler.add(make_request(1, (*shared, 901), max_tokens=1), 0.0)
    batch, _ = step(scheduler)
    assert batch.num_tokens == 513
    scheduler.add(make_request(2, (*shared, *range(700, 740)), max_tokens=1), 0.0)
    batch, (delta,) = step(scheduler)
    assert batch.num_tokens == 40
    assert delta.prefix[:2] == (512, "differs from every cached prompt")


def test_a_prefix_is_reported_as_first_found_not_as_found_after_being_pushed_out():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    fill(scheduler, {}, {}, {"max_tokens": 3})
    deltas = finish(scheduler)
    assert scheduler.num_preemptions
    assert all(delta.prefix is None for delta in deltas)


def test_caching_can_be_switched_off():
    scheduler = make_scheduler(prefix_caching=False)
    for request_id in (1, 2):
        scheduler.add(make_request(request_id, range(9), max_tokens=1), 0.0)
        batch, (delta,) = step(scheduler)
        assert batch.num_tokens == 9
        assert delta.prefix[:2] == (0, "prefix caching is off")


def test_tenants_are_charged_for_what_is_computed():
    scheduler = make_scheduler("fair", block_size=4)
    scheduler.add(make_request(1, range(9), max_tokens=3, tenant="a"), 0.0)
    finish(scheduler)
    assert scheduler._order.level("a") == 9 + 3
    scheduler.add(make_request(2, range(9), max_tokens=3, tenant="a"), 0.0)
    finish(scheduler)
    assert scheduler._order.level("a") == 12 + 1 + 3


def test_nobody_is_charged_twice_for_a_prompt():
    scheduler = make_scheduler("fair", num_blocks=5, block_size=4)
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=4, max_tokens=12, tenant=f"tenant {number}")
    finish(scheduler)
    assert scheduler.num_preemptions
    assert [scheduler._order.level(f"tenant {number}") for number in (1, 2, 3)] == [16, 16, 16]


# Prompt log probabilities


def prompt_logprobs_of(batch, num_prompt=4):
    """What a runner gives: those of the chunk's own prompt tokens, the very first left out."""
    return tuple(
        tuple(Logprob(position, -1.0, ()) for position in range(max(chunk.start, 1), min(chunk.end, num_prompt)))
        for chunk in batch.chunks
    )


def test_prompt_logprobs_are_told_once():
    """Also by one that was pushed out and computed its prompt again."""
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    told = {number: [] for number in (1, 2, 3)}
    for number in told:
        add(scheduler, number, num_prompt=4, max_tokens=12, prompt_logprobs=0)
    for _ in range(100):
        batch = scheduler.schedule(0.0)
        if batch is None:
            break
        for delta in scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch)), 0.0):
            told[delta.request_id] += [logprob.token_id for logprob in delta.prompt_logprobs]
    assert scheduler.num_preemptions
    assert told == {number: [1, 2, 3] for number in (1, 2, 3)}


def test_prompt_logprobs_of_a_prompt_pushed_out_half_way_are_told_once():
    scheduler = make_scheduler(max_batch_tokens=4, max_sequences=4)
    add(scheduler, 1, num_prompt=12, prompt_logprobs=0)
    told = []
    for number in range(6):
        batch = scheduler.schedule(0.0)
        for delta in scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch, 12)), 0.0):
            told += [logprob.token_id for logprob in delta.prompt_logprobs]
        if number == 1:
            sequence = running(scheduler)[1, 0]
            scheduler._leave(sequence)
            scheduler._wait(sequence)
    assert told == list(range(1, 12))


def test_prompt_logprobs_come_piece_by_piece_and_need_no_tokens_beside_them():
    scheduler = make_scheduler(max_batch_tokens=2, max_sequences=2)
    add(scheduler, 1, num_prompt=4, prompt_logprobs=0)
    told = []
    for _ in range(3):
        batch = scheduler.schedule(0.0)
        deltas = scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch)), 0.0)
        told += [(len(delta.token_ids), [one.token_id for one in delta.prompt_logprobs]) for delta in deltas]
    assert told == [(0, [1]), (1, [2, 3]), (1, [])]


def test_prompt_logprobs_need_the_whole_prompt_computed():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    scheduler.add(make_request(2, range(1000, 1009), max_tokens=1, prompt_logprobs=0), 0.0)
    batch, (delta,) = step(scheduler)
    assert batch.num_tokens == 9
    assert delta.prefix[:2] == (0, "prompt log probabilities need the whole prompt computed")


def test_only_who_asked_is_told_prompt_logprobs():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=4)
    add(scheduler, 2, num_prompt=4, prompt_logprobs=0, n=2)
    told = {}
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        for delta in scheduler.commit(batch, output_of(batch, prompt_logprobs=prompt_logprobs_of(batch)), 0.0):
            key = delta.request_id, delta.choice
            told[key] = told.get(key, 0) + len(delta.prompt_logprobs)
    assert told == {(1, 0): 0, (2, 0): 3, (2, 1): 0}


def test_logprobs_go_with_their_tokens():
    scheduler = make_scheduler()
    add(scheduler, 1)
    add(scheduler, 2, logprobs=1)
    batch = scheduler.schedule(0.0)
    logprob = Logprob(7, -0.5, ((7, -0.5),))
    one, two = scheduler.commit(batch, output_of(batch, logprobs=((), (logprob,))), 0.0)
    assert one.logprobs == ()
    assert two.logprobs == (logprob,)


# Choices


def test_choices_share_the_prompt_of_the_first():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=10, n=3)
    assert scheduler.load.num_waiting == 1
    batch, _ = step(scheduler)
    assert batch.num_tokens == 10
    assert scheduler.load.num_waiting == 2
    batch, deltas = step(scheduler)
    assert [chunk.length for chunk in batch.chunks] == [1, 1, 1]
    first, *others = (running(scheduler)[1, choice] for choice in range(3))
    assert batch.copies == tuple((first.blocks[2], other.blocks[2]) for other in others)
    for other, chunk in zip(others, batch.chunks[1:]):
        assert other.blocks[:2] == first.blocks[:2]
        assert chunk.start == 9
        assert chunk.new_blocks == tuple(other.blocks)
        assert chunk.arrival.choice == other.choice
    assert [delta.prefix and delta.prefix[:2] for delta in deltas] == [None, (9, ""), (9, "")]


def test_a_prompt_that_ends_with_a_block_needs_no_copy():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=9, n=2)
    step(scheduler)
    batch, _ = step(scheduler)
    assert batch.copies == ()
    assert batch.chunks[1].start == 8


def test_choices_wait_for_the_first_through_all_pieces_of_its_prompt():
    scheduler = make_scheduler(max_batch_tokens=4, max_sequences=4)
    add(scheduler, 1, num_prompt=10, n=2)
    for _ in range(2):
        step(scheduler)
        assert scheduler.load.num_waiting == 0
    step(scheduler)
    assert scheduler.load.num_waiting == 1


def test_choices_go_on_when_the_first_ends_with_its_first_token():
    scheduler = make_scheduler(block_size=4)
    add(scheduler, 1, num_prompt=10, n=3, max_tokens=1)
    deltas = finish(scheduler)
    assert [(delta.choice, delta.token_ids, delta.finish.reason) for delta in deltas] == [
        (choice, (7,), "length") for choice in range(3)
    ]
    assert deltas[1].prefix[:2] == (8, ""), "what the first computed is cached"


def test_choices_go_on_when_the_first_fails():
    scheduler = make_scheduler()
    add(scheduler, 1, num_prompt=10, n=2, max_tokens=2)
    batch = scheduler.schedule(0.0)
    (failed,) = scheduler.commit(batch, output_of(batch, failures=((0, "no good"),)), 0.0)
    assert failed.choice == 0
    assert [(delta.choice, delta.finish is not None) for delta in finish(scheduler)] == [(1, False), (1, True)]


def test_a_choice_whose_turn_comes_late_starts_on_its_own():
    """When the first has been pushed out, what it published is matched instead."""
    scheduler = make_scheduler("priority", num_blocks=6, block_size=4, max_sequences=3)
    add(scheduler, 1, num_prompt=9, max_tokens=4, n=2)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, output_of(batch), 0.0)
    scheduler._leave(running(scheduler)[1, 0])
    scheduler._wait(next(iter(scheduler._requests[1])))
    batch, _ = step(scheduler)
    assert batch.copies == ()
    assert [(chunk.start, chunk.arrival.choice) for chunk in batch.chunks] == [(8, 0), (8, 1)]


# Cancelling, deadlines, pins


def test_cancelling_says_so_once():
    scheduler = make_scheduler()
    add(scheduler, 1)
    assert scheduler.cancel(1) == (Delta(1, 0, (), Finish(FinishReason.CANCELLED)),)
    assert scheduler.cancel(1) == ()
    assert scheduler.cancel(99) == ()
    assert not scheduler.has_work


def test_a_deadline_ends_every_choice_that_is_left():
    scheduler = make_scheduler()
    add(scheduler, 1, n=3, deadline_s=5.0)
    add(scheduler, 2, deadline_s=6.0)
    add(scheduler, 3)
    step(scheduler)
    assert scheduler.expire(4.999) == ()
    deltas = scheduler.expire(5.0)
    assert [(delta.request_id, delta.choice) for delta in deltas] == [(1, 0), (1, 1), (1, 2)]
    assert {delta.finish.fault for delta in deltas} == {Fault.DEADLINE}
    assert "the deadline passed before the answer was complete" in deltas[0].finish.message
    assert scheduler.expire(5.5) == ()
    assert [delta.request_id for delta in scheduler.expire(100.0)] == [2]
    assert inside(scheduler) == {3}
    scheduler.check()


def test_several_deadlines_pass_in_order():
    scheduler = make_scheduler()
    for number, deadline_s in ((1, 9.0), (2, 3.0), (3, 7.0), (4, 20.0)):
        add(scheduler, number, deadline_s=deadline_s)
    scheduler.cancel(3)
    assert [delta.request_id for delta in scheduler.expire(10.0)] == [2, 1]
    assert scheduler.wake_s == 0.0
    step(scheduler)
    assert scheduler.wake_s == 20.0


def test_deadlines_of_ended_requests_are_forgotten():
    scheduler = make_scheduler()
    add(scheduler, 1, deadline_s=1e9)
    for number in range(2, 500):
        add(scheduler, number, deadline_s=1e6 + number)
        scheduler.cancel(number)
    assert len(scheduler._deadlines) <= MAX_IDLE_DEADLINES + 5
    assert [delta.request_id for delta in scheduler.expire(1e9)] == [1]
    assert scheduler._deadlines == []
    kept = range(1000, 1200)
    for number in kept:
        add(scheduler, number, num_prompt=1, deadline_s=float(5000 - number))
    for number in range(2000, 2600):
        add(scheduler, number, num_prompt=1, deadline_s=1e6)
        scheduler.cancel(number)
    assert len(scheduler._deadlines) <= 2 * len(kept) + MAX_IDLE_DEADLINES + 5
    assert [delta.request_id for delta in scheduler.expire(1e6)] == sorted(kept, reverse=True)


def test_a_prompt_can_be_kept_until_a_time():
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    request = make_request(2, range(1000, 1009), max_tokens=1)
    assert scheduler.pin(request, 50.0) == 8
    assert scheduler.pin(make_request(3, range(9)), 50.0) == 0
    assert scheduler.pool.num_pinned == 2
    add(scheduler, 4, num_prompt=8, max_tokens=1)
    finish(scheduler)
    assert scheduler.pin(request, 10.0) == 8, "still there"
    scheduler.schedule(49.0)
    assert scheduler.pool.num_pinned == 2
    scheduler.schedule(50.0)
    assert scheduler.pool.num_pinned == 0
    add(scheduler, 5, num_prompt=15, max_tokens=1)
    finish(scheduler)
    assert scheduler.pin(request, 99.0) == 0


def test_pins_give_way_to_what_could_not_run_otherwise():
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    scheduler.pin(make_request(2, range(1000, 1009)), 1e9)
    add(scheduler, 3, num_prompt=9, max_tokens=8)
    assert len(finish(scheduler)) == 8
    assert scheduler.pool.num_pinned == 0


def test_pins_do_not_give_way_while_others_run():
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    add(scheduler, 1, num_prompt=9, max_tokens=1)
    finish(scheduler)
    scheduler.pin(make_request(2, range(1000, 1009)), 1e9)
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
    scheduler.pin(make_request(2, range(1000, 1009)), 1e9)
    add(scheduler, 3, num_prompt=8, max_tokens=8)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert scheduler.num_preemptions == 0
    assert scheduler.pool.num_pinned == 0
    for batch in (first, second):
        assert len(scheduler.commit(batch, output_of(batch), 0.0)) == 1
    scheduler.check()


def test_pins_do_not_give_way_if_somebody_can_leave():
    scheduler = make_scheduler(num_blocks=6, block_size=4)
    add(scheduler, 1, num_prompt=5, max_tokens=1)
    finish(scheduler)
    scheduler.pin(make_request(2, range(1000, 1005)), 1e9)
    fill_from(scheduler, 3, 2)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert scheduler.pool.num_pinned == 1


def fill_from(scheduler, first_id, num_requests):
    for number in range(first_id, first_id + num_requests):
        add(scheduler, number, num_prompt=4, max_tokens=14)


# The books


def test_books_that_do_not_balance_are_noticed():
    def busy():
        scheduler = make_scheduler(max_sequences=2)
        for number in (1, 2, 3):
            add(scheduler, number)
        step(scheduler)
        return scheduler

    for corrupt in (
        lambda scheduler: scheduler._rows.append(0),
        lambda scheduler: setattr(running(scheduler)[1, 0], "row", 1),
        lambda scheduler: setattr(running(scheduler)[1, 0], "row", None),
        lambda scheduler: setattr(scheduler, "_num_waiting_tokens", 0),
        lambda scheduler: setattr(scheduler._order.peek(), "blocks", [1]),
        lambda scheduler: setattr(scheduler._order.peek(), "row", 1),
        lambda scheduler: running(scheduler)[1, 0].blocks.clear(),
    ):
        scheduler = busy()
        scheduler.check()
        corrupt(scheduler)
        with pytest.raises(RuntimeError):
            scheduler.check()


def test_a_whole_batch_can_have_drafts_too():
    scheduler = Scheduler(LIMITS._replace(num_blocks=4, block_size=4), batching=STATIC)
    add(scheduler, 1, num_prompt=3, max_tokens=6)
    batch = scheduler.schedule(0.0)
    scheduler.commit(batch, draw_with_drafts(batch, (9,), (1, 2, 3, 4, 5, 6)), 0.0)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.num_drafts == 4
    assert chunk.new_blocks == ()
