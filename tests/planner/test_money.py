"""What it costs, by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.planner.money import (
    HOURS_PER_MONTH,
    SECONDS_PER_MONTH,
    Assumptions,
    api_price,
    break_even_requests,
    prompt_time_share,
    self_host,
    token_price,
)
from tests.planner.candidates import make_candidate, make_demand

SIZES = make_demand(prompts=(900, 900), answers=(100, 100)).sizes


def test_a_dollar_an_hour_at_one_request_a_second():
    """3,600 requests an hour of 900 and 100 tokens: 3.6 million tokens for a dollar."""
    price = token_price(1.0, 1.0, SIZES, prompt_share=0.25)
    assert price.blended == pytest.approx(1 / 3.6)
    assert price.prompt == pytest.approx(0.25 / 3.24)
    assert price.answer == pytest.approx(0.75 / 0.36)


@given(share=st.floats(0.0, 1.0), hourly=st.floats(0.01, 1000.0), rate=st.floats(0.01, 1000.0))
def test_prompts_and_answers_together_pay_for_the_hour(share, hourly, rate):
    price = token_price(hourly, rate, SIZES, share)
    paid = (price.prompt * SIZES.mean_prompt + price.answer * SIZES.mean_answer) / 1e6 * rate * 3600
    assert paid == pytest.approx(hourly)


def test_longer_prompts_take_a_larger_share_of_the_time():
    cost = make_candidate().step_cost
    sizes = [make_demand(prompts=(length, length)).sizes for length in (10, 100, 1000)]
    shares = [prompt_time_share(cost, one, 16, 2048) for one in sizes]
    assert shares == sorted(shares)
    assert 0.0 < shares[0] < shares[-1] < 1.0


def test_break_even_by_hand():
    """A replica of $500 serves a million requests that an API sells for $1,000; $2,000 of work are paid by four."""
    assert break_even_requests(0.001, 1e6, 500.0, 2000.0) == 4e6
    assert break_even_requests(0.001, 1e6, 500.0, 0.0) == 500_000
    assert break_even_requests(0.001, 1e6, 1000.0, 1.0) is None


@given(each=st.floats(1e-5, 0.1), capacity=st.floats(1e3, 1e9), month=st.floats(1.0, 1e5), fixed=st.floats(0.0, 1e5))
def test_at_break_even_both_cost_the_same_and_the_replicas_suffice(each, capacity, month, fixed):
    even = break_even_requests(each, capacity, month, fixed)
    if even is None:
        assert capacity * each <= month
        return
    replicas = round((even * each - fixed) / month)
    assert fixed + replicas * month == pytest.approx(even * each)
    assert even <= replicas * capacity * (1 + 1e-9)


def test_a_month_of_whole_replicas():
    """10 requests/s on replicas of 8 requests/s, used at 70 %: two of them."""
    cached = Assumptions(api_in=2.0, api_out=4.0, api_cached=0.5, api_batch=0.5)
    assert api_price(1000, 400, 100, cached) == pytest.approx((600 * 2.0 + 400 * 0.5 + 100 * 4.0) / 2 / 1e6)
    assert api_price(1000, 400, 100, replace(cached, api_cached=None, api_batch=1.0)) == pytest.approx(2400 / 1e6)
    assumed = Assumptions(utilization=0.7, engineer_hours=10, engineer_price=50, api_in=1.0, api_out=2.0)
    found = self_host(rate=10.0, replica_rate=8.0, replica_hourly=3.0, sizes=SIZES, assumed=assumed)
    assert found.gpu_dollars == 2 * 3.0 * HOURS_PER_MONTH
    assert found.dollars == found.gpu_dollars + 500
    assert found.api_dollars == pytest.approx(10 * SECONDS_PER_MONTH * (900 * 1.0 + 100 * 2.0) / 1e6)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"utilization": 0.0}, "utilization"),
        ({"utilization": float("nan")}, "utilization"),
        ({"engineer_hours": -1.0}, "engineer-hours"),
        ({"api_in": 1.0}, "api-out"),
    ],
)
def test_assumptions_are_checked(wrong, hint):
    with pytest.raises(ConfigError, match=hint):
        Assumptions(**wrong)
