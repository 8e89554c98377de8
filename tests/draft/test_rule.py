"""Laws of the rule: it never pays for what is not worth it, and takes all that is."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.draft.rule import LEAST_GAIN, choose_lengths, tokens_per_round
from penstock.runtime.draft.step_cost import MAX_AGE, NUM_KEPT, StepCost

chances = st.lists(
    st.lists(st.floats(0.01, 1.0), max_size=3).map(lambda values: sorted(values, reverse=True)), min_size=1, max_size=3
)


def yielded(guesses: list[list[float]], lengths: tuple[int, ...], slope: float) -> float:
    expected = len(guesses) + sum(sum(guess[:length]) for guess, length in zip(guesses, lengths))
    return expected / (1.0 + slope * (len(guesses) + sum(lengths)))


@given(chances, st.floats(0.0, 2.0))
def test_no_other_lengths_would_yield_more(guesses: list[list[float]], slope: float) -> None:
    chosen = choose_lengths(guesses, len(guesses), lambda tokens: 1.0 + slope * tokens)
    best = max(yielded(guesses, lengths, slope) for lengths in product(*(range(len(guess) + 1) for guess in guesses)))
    assert yielded(guesses, tuple(chosen), slope) >= best / LEAST_GAIN - 1e-12


def test_drafts_that_cost_as_much_as_steps_are_not_checked() -> None:
    assert choose_lengths([[0.9, 0.8]], 1, float) == [0]


def test_drafts_that_cost_nothing_are_checked() -> None:
    assert choose_lengths([[0.9, 0.8], [0.3]], 2, lambda _: 1.0) == [2, 1]


def test_the_likeliest_come_first() -> None:
    step_s = {2: 1.0, 3: 1.0, 4: 9.0, 5: 9.0}
    assert choose_lengths([[0.5], [0.9, 0.8]], 2, step_s.__getitem__) == [0, 1]


def test_a_cheap_width_beyond_a_dear_one_is_found() -> None:
    """Kernels work in tiles: the fifth token may cost what the second does."""
    step_s = {1: 1.0, 2: 1.9, 3: 1.9, 4: 1.9, 5: 1.9}
    assert choose_lengths([[0.9, 0.85, 0.8, 0.75]], 1, step_s.__getitem__) == [4]


def test_what_drafting_itself_takes_is_counted() -> None:
    assert choose_lengths([[0.5]], 1, lambda width: 1.0 + 0.4 * (width > 1)) == [1]
    assert choose_lengths([[0.5]], 1, lambda width: 1.0 + 0.5 * (width > 1)) == [0]


def test_tokens_of_a_round() -> None:
    assert tokens_per_round(0.8, 5) == pytest.approx(3.689, abs=1e-3)
    assert tokens_per_round(0.0, 5) == 1.0
    assert tokens_per_round(1.0, 5) == 6.0


def test_a_cost_is_the_median_of_what_was_measured() -> None:
    cost = StepCost()
    for seconds in (1.0, 1.1, 50.0, 1.2, 1.1):
        cost.add(4, seconds)
    assert cost(4) == 1.1


def test_a_cost_between_measured_widths_lies_between_them_and_rises_beyond() -> None:
    cost = StepCost()
    cost.add(1, 1.0)
    cost.add(5, 2.0)
    assert cost(3) == 1.5
    assert cost(6) == 2.25, "as steep as up to there"
    assert StepCost()(1) > 0


def test_one_slow_measurement_does_not_make_plain_steps_look_slow() -> None:
    cost = StepCost()
    cost.add(60, 6.0)
    cost.add(64, 9.0)
    assert cost(64) == 9.0
    assert cost.at_most(64) == pytest.approx(6.4)
    cost.add(64, 6.2)
    cost.add(64, 6.2)
    assert cost.at_most(64) == 6.2
    assert cost.at_most(640) == cost(640), "nothing as wide was measured"


def test_a_width_costs_no_more_than_a_wider_one_that_was_measured_lately() -> None:
    cost = StepCost()
    cost.add(2, 9.0)
    cost.add(4, 3.0)
    assert cost(2) == 3.0
    for _ in range(MAX_AGE):
        cost.add(1, 2.0)
    assert cost(2) == 9.0


def test_a_cost_follows_a_machine_that_became_slower() -> None:
    cost = StepCost()
    for _ in range(NUM_KEPT):
        cost.add(1, 1.0)
    for _ in range(NUM_KEPT):
        cost.add(1, 3.0)
    assert cost(1) == 3.0


def test_a_width_seen_long_ago_is_not_fresh() -> None:
    cost = StepCost()
    assert not cost.is_fresh(1)
    cost.add(10, 1.0)
    assert cost.is_fresh(12)
    assert not cost.is_fresh(13)
    assert not cost.is_fresh(9)
    for _ in range(MAX_AGE):
        cost.add(40, 1.0)
    assert not cost.is_fresh(12)
