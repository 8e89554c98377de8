"""The physics on paper: figures worked out by hand."""

import pytest

from penstock.errors import ConfigError
from penstock.runtime.models import catalog
from penstock.tools.cost.hardware import find
from penstock.tools.planner.figures import decode_floor_s, sequences_that_fit, speculation_gain, tokens_per_round


def test_a_70b_model_in_8_bits_takes_21_ms_a_step_on_an_h100() -> None:
    weights = catalog.find("llama-3-70b").num_parameters * 1.0
    assert decode_floor_s(weights, find("h100-sxm").peak) == pytest.approx(70.55e9 / 3.35e12, rel=1e-3)
    assert round(1e3 * decode_floor_s(weights, find("h100-sxm").peak)) == 21


def test_kv_of_the_batch_is_read_beside_the_weights() -> None:
    peak = find("h100-sxm").peak
    assert decode_floor_s(1e9, peak, 1e9) == 2 * decode_floor_s(1e9, peak)


def test_a_round_of_five_drafts_accepted_four_times_in_five_gives_three_point_seven_tokens() -> None:
    assert tokens_per_round(0.8, 5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert round(tokens_per_round(0.8, 5), 2) == 3.69
    assert tokens_per_round(1.0, 4) == 5.0
    assert tokens_per_round(0.0, 4) == 1.0


def test_drafts_that_cost_as_much_as_they_give_gain_nothing() -> None:
    assert speculation_gain(0.8, 5, 0.0) == tokens_per_round(0.8, 5)
    assert speculation_gain(1.0, 4, 1.0) == 1.0


@pytest.mark.parametrize(("acceptance", "drafts"), [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.5, -1)])
def test_shares_are_shares(acceptance: float, drafts: int) -> None:
    with pytest.raises(ConfigError, match="acceptance"):
        tokens_per_round(acceptance, drafts)


def test_users_are_what_is_left_over_what_each_holds() -> None:
    """40 GB beside the weights, 2,048 tokens of a 70B model's KV each."""
    assert sequences_that_fit(40e9, 327_680, 2048) == 59
    assert sequences_that_fit(-1.0, 327_680, 2048) == 0
