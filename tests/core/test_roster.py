"""Coming and going: nobody is in two places, and whoever was away stands again where it stood."""

from itertools import permutations

import pytest

from penstock.runtime.core.batching import CONTINUOUS, dynamic
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.order import Queue, by_arrival
from penstock.runtime.core.roster import Roster
from tests.core.sequences import make_sequence
from tests.engine.answers import LIMITS


def make_roster(max_sequences=4, batching=CONTINUOUS):
    limits = LIMITS._replace(max_sequences=max_sequences)
    return Roster(limits, BlockPool(limits.num_blocks, limits.block_size), Queue(by_arrival), batching)


def let_in(roster, count):
    sequences = [make_sequence(range(5)) for _ in range(count)]
    for sequence in sequences:
        roster.wait(sequence)
        roster.enter(sequence, 0)
    return sequences


def begin_fast_forward(roster, sequence):
    sequence.fast_forward_steps = sequence.num_verifying = 3
    roster.begin_fast_forward(sequence)


def bring_back(roster, sequence):
    sequence.num_verifying = 0
    roster.end_fast_forward(sequence)


@pytest.mark.parametrize("returning", list(permutations(range(3))))
def test_those_who_come_back_stand_in_the_order_of_admission(returning):
    roster = make_roster()
    sequences = let_in(roster, 3)
    for sequence in sequences:
        begin_fast_forward(roster, sequence)
        roster.check()
    sequences += let_in(roster, 1)
    assert roster.in_order() == sequences[3:]
    for count, number in enumerate(returning, 1):
        bring_back(roster, sequences[number])
        roster.check()
        here = [sequences[one] for one in sorted(returning[:count])]
        assert roster.in_order() == [*here, sequences[3]]
        assert list(roster.present) == roster.in_order()


def test_one_that_was_not_away_does_not_come_back():
    roster = make_roster()
    sequences = let_in(roster, 3)
    roster.end_fast_forward(sequences[0])
    assert list(roster.present) == roster.in_order() == sequences


def test_who_leaves_while_away_is_gone():
    roster = make_roster()
    one, two = let_in(roster, 2)
    begin_fast_forward(roster, one)
    roster.preempt(one)
    roster.check()
    assert roster.in_order() == list(roster.running) == [two]
    roster.enter(one, 0)
    assert roster.in_order() == [two, one]
    roster.check()


def test_somebody_neither_present_nor_away_is_noticed():
    roster = make_roster()
    one, _ = let_in(roster, 2)
    roster.begin_fast_forward(one)
    with pytest.raises(RuntimeError, match="fast-forward"):
        roster.check()


def test_a_prompt_that_is_behind_and_not_counted_is_noticed():
    roster = make_roster()
    one, two = let_in(roster, 2)
    assert list(roster.behind) == [one, two]
    one.num_computed = one.num_prompt
    with pytest.raises(RuntimeError, match="prompts"):
        roster.check()
    roster.catch_up()
    roster.check()
    assert list(roster.behind) == [two]
    roster.preempt(two)
    roster.check()
    assert not roster.behind


def test_rows_are_given_back_and_given_again():
    roster = make_roster(max_sequences=2)
    one, two = let_in(roster, 2)
    assert not roster.has_row
    assert {one.row, two.row} == {0, 1}
    row = one.row
    roster.leave(one)
    assert roster.has_row
    (three,) = let_in(roster, 1)
    assert three.row == row
    roster.check()


def test_those_who_wait_are_let_in_when_the_first_of_them_has_waited_or_all_rows_could_be_taken():
    roster = make_roster(max_sequences=2, batching=dynamic(5.0))
    assert roster.opens_s is None
    one, two = make_sequence(range(5)), make_sequence(range(3))
    roster.now = 10.0
    roster.wait(one)
    roster.now = 12.0
    assert roster.opens_s == 15.0
    roster.wait(two)
    assert roster.opens_s == 10.0
    assert roster.num_waiting_tokens == 8
    roster.give_up(one)
    assert (roster.opens_s, roster.num_waiting_tokens) == (15.0, 3)
    roster.give_up(two)
    assert (roster.opens_s, roster.num_waiting_tokens) == (None, 0)
    roster.check()
