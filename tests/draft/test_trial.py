"""A trial says what an engine would have done with the same text."""

from penstock.runtime.draft.drafters.ngram import NgramDrafter
from penstock.runtime.draft.step_cost import StepCost
from penstock.runtime.draft.trial import try_drafts


def cost(slope: float) -> StepCost:
    step_s = StepCost()
    for width in range(1, 18):
        step_s.add(width, 1.0 + slope * (width - 1))
    return step_s


def test_a_text_that_repeats_itself_is_generated_in_few_steps() -> None:
    text = list(range(50)) * 6
    trial = try_drafts([NgramDrafter()], text, 60, cost(0.05))
    assert trial.num_tokens == 240
    assert trial.num_steps < 60
    assert trial.acceptance > 0.9
    assert trial.gain > 3


def test_a_text_that_never_repeats_gains_and_loses_nothing() -> None:
    trial = try_drafts([NgramDrafter()], list(range(300)), 60, cost(0.05))
    assert (trial.num_steps, trial.num_checked, trial.gain) == (240, 0, 1.0)


def test_drafts_as_dear_as_steps_are_left() -> None:
    trial = try_drafts([NgramDrafter()], list(range(50)) * 6, 60, cost(1.0))
    assert trial.num_checked == 0
    assert trial.gain == 1.0
