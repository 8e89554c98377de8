"""Sequences that continue by themselves, and batches committed in parts: as if every step had been planned."""

from itertools import permutations

import pytest

from penstock.runtime.core.batch import FinishReason, StepOutput
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.queue.batching import CONTINUOUS
from penstock.runtime.core.queue.order import Queue, by_arrival
from penstock.tools.sim.replica.runs import RunRoster, RunScheduler, num_run_steps
from tests.core.sequences import make_sequence
from tests.core.steps import add, make_scheduler, running
from tests.engine.answers import LIMITS


def make_roster():
    limits = LIMITS._replace(max_sequences=4)
    return RunRoster(limits, BlockPool(limits.num_blocks, limits.block_size), Queue(by_arrival), CONTINUOUS)


def let_in(roster, count):
    sequences = [make_sequence(range(5)) for _ in range(count)]
    for sequence in sequences:
        roster.wait(sequence)
        roster.enter(sequence, 0)
    return sequences


def commit(scheduler, batch, drawn, fast_forward=0):
    deltas = ()
    for part in scheduler.split(batch):
        output = StepOutput(((9,) * drawn if part.chunks[0].samples else (),))
        deltas += scheduler.commit_run(part, output, 0.0, fast_forward)
    return deltas


def start(fast_forward, max_tokens=20, **limits):
    scheduler = make_scheduler(kind=RunScheduler, **limits)
    add(scheduler, 1, num_prompt=3, max_tokens=max_tokens)
    commit(scheduler, scheduler.schedule(0.0), 1, fast_forward)
    return scheduler


def test_a_sequence_goes_ahead_as_far_as_it_may_and_no_further_than_its_end():
    for fast_forward, max_tokens, length in ((4, 20, 5), (4, 4, 3), (4, 2, 1), (0, 20, 1)):
        (chunk,) = start(fast_forward, max_tokens).schedule(0.0).chunks
        assert (chunk.start, chunk.length, num_run_steps(chunk)) == (3, length, length - 1)
        assert (chunk.num_drafts, chunk.token_ids) == (0, ())


@pytest.mark.parametrize("drawn", [1, 3, 5])
def test_one_that_comes_back_early_goes_on_where_it_was(drawn):
    scheduler = start(4, block_size=2)
    batch = scheduler.schedule(0.0)
    commit(scheduler, batch, drawn)
    sequence = running(scheduler)[1, 0]
    assert len(sequence.tokens) == 4 + drawn
    assert sequence.num_computed == 3 + drawn
    scheduler.check()
    (chunk,) = scheduler.schedule(0.0).chunks
    assert (chunk.start, chunk.length) == (3 + drawn, 1)


def test_who_is_away_is_not_planned_but_takes_one_token_of_every_step():
    scheduler = start(4, max_batch_tokens=8, max_sequences=4)
    scheduler.schedule(0.0)
    add(scheduler, 2, num_prompt=12)
    (chunk,) = scheduler.schedule(0.0).chunks
    assert chunk.length == 7
    scheduler = start(0, max_batch_tokens=8, max_sequences=4)
    add(scheduler, 2, num_prompt=12)
    decode, chunk = scheduler.schedule(0.0).chunks
    assert (decode.length, chunk.length) == (1, 7), "as if it had been planned with the others"


def test_a_split_batch_is_committed_in_any_order_and_ends_each_alone():
    scheduler = make_scheduler(kind=RunScheduler)
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=3, max_tokens=3)
    commit(scheduler, scheduler.schedule(0.0), 1, 1)
    parts = scheduler.split(scheduler.schedule(0.0))
    assert [part.chunks[0].length for part in parts] == [2, 2, 2]
    for part in reversed(parts):
        (delta,) = commit(scheduler, part, 2)
        assert delta.finish.reason is FinishReason.LENGTH
        scheduler.check()
    assert not scheduler.has_work
    assert not scheduler.flights


def begin_run(roster, sequence):
    roster.steps[sequence] = sequence.num_verifying = 3
    roster.begin_run(sequence)


def bring_back(roster, sequence):
    sequence.num_verifying = 0
    roster.end_run(sequence)


@pytest.mark.parametrize("returning", list(permutations(range(3))))
def test_those_who_come_back_stand_in_the_order_of_admission(returning):
    roster = make_roster()
    sequences = let_in(roster, 3)
    for sequence in sequences:
        begin_run(roster, sequence)
        roster.check()
    sequences += let_in(roster, 1)
    assert roster.plannable() == sequences[3:]
    for count, number in enumerate(returning, 1):
        bring_back(roster, sequences[number])
        roster.check()
        here = [sequences[one] for one in sorted(returning[:count])]
        assert roster.plannable() == [*here, sequences[3]]
        assert list(roster.present) == roster.plannable()


def test_one_that_was_not_away_does_not_come_back():
    roster = make_roster()
    sequences = let_in(roster, 3)
    roster.end_run(sequences[0])
    assert list(roster.present) == roster.plannable() == sequences


def test_who_leaves_while_away_is_gone():
    roster = make_roster()
    one, two = let_in(roster, 2)
    begin_run(roster, one)
    roster.preempt(one)
    roster.check()
    assert roster.plannable() == list(roster.running) == [two]
    roster.enter(one, 0)
    assert roster.plannable() == [two, one]
    roster.check()


def test_somebody_neither_present_nor_away_is_noticed():
    roster = make_roster()
    one, _ = let_in(roster, 2)
    roster.begin_run(one)
    with pytest.raises(RuntimeError, match="fast-forward"):
        roster.check()


def test_a_split_batch_copies_once_and_before_the_first():
    scheduler = make_scheduler(kind=RunScheduler)
    for number in (1, 2, 3):
        add(scheduler, number, num_prompt=3, max_tokens=3)
    batch = scheduler.schedule(0.0)._replace(copies=((1, 2),))
    sequences = scheduler.flights.sequences(batch)
    parts = scheduler.split(batch)
    assert [part.chunks for part in parts] == [(chunk,) for chunk in batch.chunks]
    assert [part.copies for part in parts] == [((1, 2),), (), ()]
    assert [part.step for part in parts] == [2, 3, 4]
    assert [scheduler.flights.sequences(part) for part in parts] == [(one,) for one in sequences]
