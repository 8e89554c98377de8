"""Coming and going: nobody is in two places."""

import pytest

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.queue.batching import CONTINUOUS, dynamic
from penstock.runtime.core.queue.order import Queue, by_arrival
from penstock.runtime.core.queue.roster import Roster
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


@pytest.mark.parametrize(
    ("book", "message"),
    [("batch", "batch sequences that run"), ("tenants", "tenants"), ("num_batch_waiting", "batch sequences that wait")],
)
def test_books_of_tenants_and_lanes_that_do_not_balance_are_noticed(book, message):
    roster = make_roster()
    (one,) = let_in(roster, 1)
    roster.check()
    if book == "batch":
        roster.batch[one] = None
    elif book == "tenants":
        roster.tenants["other"] += 1
    else:
        roster.num_batch_waiting += 1
    with pytest.raises(RuntimeError, match=message):
        roster.check()


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
