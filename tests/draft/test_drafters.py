"""Laws of the drafters: a guess follows from the text alone, whatever happened to it, and memory is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.draft.drafter import Drafter, View
from penstock.runtime.draft.drafters.ngram import NgramDrafter
from penstock.runtime.draft.drafters.prediction import PredictionDrafter
from penstock.runtime.draft.drafters.suffix import MAX_TENANT_TOKENS, SuffixDrafter

DRAFTERS = (NgramDrafter, PredictionDrafter, SuffixDrafter)


def guess(drafter: Drafter, view: View, most: int = 8) -> tuple[int, ...]:
    (found,) = drafter.propose([view], most)
    return found.tokens


@pytest.mark.parametrize("kind", DRAFTERS)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(0, 3), max_size=20), st.data())
def test_a_guess_depends_on_the_text_alone(
    kind: type[Drafter], tokens: list[int], prediction: list[int], data: st.DataObject
) -> None:
    """Asked at every token, or only now: it is the same guess. So preemption, forks and failed steps cannot spoil it."""
    asked = sorted(data.draw(st.sets(st.integers(1, len(tokens)), max_size=8)))
    often, once = kind(), kind()
    for other in (often, once):
        other.propose([View((9, 0), [0, 1, 2, 3, 1, 2], 2)], 4)
        other.finish(View((9, 0), [0, 1, 2, 3, 1, 2], 2))
    for length in asked:
        often.propose([View((0, 0), tokens[:length], 1, prediction=prediction)], 8)
    view = View((0, 0), tokens, 1, prediction=prediction)
    assert guess(often, view) == guess(once, view)
    assert len(guess(once, view)) <= 8


def test_a_quotation_is_guessed_from_the_prompt() -> None:
    prompt = list(range(100, 140))
    assert guess(NgramDrafter(), View((0, 0), [*prompt, 7, 110, 111, 112], 40), 5) == (113, 114, 115, 116, 117)


def test_a_new_text_is_not_guessed() -> None:
    assert guess(NgramDrafter(), View((0, 0), list(range(50)), 40)) == ()


def test_a_generation_that_has_ended_is_forgotten() -> None:
    drafter = NgramDrafter()
    view = View((0, 0), [1, 2, 3, 1, 2, 3], 3)
    assert guess(drafter, view)
    drafter.finish(view)
    assert guess(drafter, View((0, 0), [5, 6], 1)) == ()


def test_answers_are_remembered_for_their_tenant_alone() -> None:
    drafter = SuffixDrafter()
    drafter.finish(View((0, 0), [1, 10, 11, 12, 13, 14], 1, tenant="a"))
    assert guess(drafter, View((1, 0), [2, 10, 11], 1, tenant="a"), 2) == (12, 13)
    assert guess(drafter, View((2, 0), [2, 10, 11], 1, tenant="b"), 2) == ()


def test_memory_is_bounded_over_all_tenants() -> None:
    drafter = SuffixDrafter(max_tokens=1000)
    for number in range(100):
        drafter.finish(View((number, 0), [0, *range(90)], 1, tenant=f"tenant {number}"))
        assert drafter.num_tokens <= 1000
    assert guess(drafter, View((0, 0), [5, 6, 7], 1, tenant="tenant 99"))
    assert not guess(drafter, View((0, 0), [5, 6, 7], 1, tenant="tenant 0"))


def test_memory_is_bounded_for_one_tenant() -> None:
    drafter = SuffixDrafter()
    for number in range(40):
        drafter.finish(View((number, 0), [0] + [number] * 4000, 1))
    assert drafter.num_tokens <= 2 * MAX_TENANT_TOKENS


def test_a_prediction_is_followed_from_its_first_token() -> None:
    view = View((0, 0), [1, 50], 1, prediction=[50, 51, 52, 53])
    assert guess(PredictionDrafter(), view) == (51, 52, 53)


def test_a_prediction_goes_on_after_a_token_was_replaced() -> None:
    prediction = [50, 51, 52, 53, 54, 55]
    assert guess(PredictionDrafter(), View((0, 0), [1, 50, 51, 99], 1, prediction=prediction)) == (53, 54, 55)


def test_a_prediction_goes_on_after_tokens_were_put_in() -> None:
    prediction = [50, 51, 52, 53, 54, 55]
    answer = [50, 51, 90, 91, 92, 52, 53]
    assert guess(PredictionDrafter(), View((0, 0), [1, *answer], 1, prediction=prediction)) == (54, 55)


def test_a_prediction_that_is_left_for_good_is_guessed_no_more() -> None:
    prediction = list(range(50, 90))
    assert guess(PredictionDrafter(), View((0, 0), [1, *range(200, 220)], 1, prediction=prediction)) == ()


def test_without_a_prediction_nothing_is_guessed() -> None:
    assert guess(PredictionDrafter(), View((0, 0), [1, 2, 1, 2], 1)) == ()
