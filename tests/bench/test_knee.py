"""Laws of the search for the knee: it brackets the limit, wherever it begins, and stops where it cannot trust a trial."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.bench.knee import LEAST_RATE, MOST_RATE, MOST_TRIALS, Knee, Trial, find_knee


def search(limit: float, start: float, trusted_below: float = float("inf"), **options) -> Knee:
    async def attempt(rate: float) -> Trial:
        return Trial(rate, rate <= limit, "" if rate < trusted_below else "client-bound")

    return asyncio.run(find_knee(attempt, start, **options))


@given(limit=st.floats(0.05, 1000), start=st.floats(0.1, 500))
def test_the_limit_lies_between_what_held_and_what_did_not(limit, start):
    knee = search(limit, start, most_trials=40)
    assert knee.rate <= limit < knee.beyond <= 1.1 * knee.rate * (1 + 1e-9)
    assert knee.rate in [trial.rate for trial in knee.trials]


def test_a_server_that_never_meets_its_targets_has_no_knee():
    knee = search(0.0, 1.0, most_trials=40)
    assert (knee.rate, knee.beyond) == (None, min(trial.rate for trial in knee.trials))
    assert knee.beyond >= LEAST_RATE


def test_a_server_without_a_limit_is_tried_as_far_as_a_client_can():
    knee = search(1e9, 1.0, most_trials=40)
    assert knee.beyond is None
    assert knee.rate > MOST_RATE / 2
    bounded = search(1e9, 1.0, trusted_below=20.0)
    assert bounded.is_bounded_by_client
    assert (bounded.rate, bounded.beyond) == (16.0, None)


@given(limit=st.floats(0.0, 1e9), start=st.floats(0.1, 500))
def test_the_search_ends_after_so_many_trials_and_keeps_above_the_least(limit, start):
    knee = search(limit, start, least=start / 4)
    assert len(knee.trials) <= MOST_TRIALS
    assert all(trial.rate >= start / 4 for trial in knee.trials)


def test_a_search_that_is_ended_says_what_it_knows():
    tried = []

    async def attempt(rate: float) -> Trial | None:
        tried.append(rate)
        return Trial(rate, rate <= 5.0) if len(tried) < 5 else None

    knee = asyncio.run(find_knee(attempt, 1.0))
    assert (knee.rate, knee.beyond, knee.is_partial) == (4.0, 8.0, True)
    assert len(knee.trials) == 4


@pytest.mark.parametrize("start", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_beginnings_are_refused(start):
    with pytest.raises(ConfigError):
        search(1.0, start)
