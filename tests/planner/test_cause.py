"""Laws of a prediction that failed: each planted cause is named, the machine's before those that follow from it."""

import math

import pytest

from penstock.tools.planner.verify.cause import LiveEvidence, cause_of

WELL = LiveEvidence({}, 1.02, 0.05, 0.3, 0.31, 1.0)


@pytest.mark.parametrize(
    ("planted", "is_profiled", "words"),
    [
        ({"signs": {"others_fraction": 0.4}, "step_ratio": 1.8}, True, "other programs used 40 %"),
        ({"signs": {"stolen_fraction": 0.3}, "step_ratio": 1.5}, True, "gave 30 % of the processors"),
        ({"signs": {"throttled_fraction": 0.5}}, False, "ran out of processor time"),
        ({"hit_fraction": 0.0, "step_ratio": 1.3}, True, "prefix cache gave 0 %"),
        ({"tokens_per_step": 1.6, "step_ratio": 0.7}, True, "drafts gave 1.60 tokens"),
        ({"step_ratio": 2.4}, True, "another period"),
        ({"step_ratio": 0.8}, False, "another share of its peak"),
        ({"model_error": 0.4}, True, "uneven"),
        ({"step_ratio": math.nan}, False, "does not say"),
        ({}, True, "before and after them"),
    ],
)
def test_the_cause_is_named(planted, is_profiled: bool, words: str) -> None:
    cause, remedy = cause_of(WELL._replace(**planted), is_profiled=is_profiled)
    assert words in cause
    assert remedy
