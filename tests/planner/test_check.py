"""Predicted beside measured: judged by the worst of times and throughput."""

import pytest

from penstock.errors import ConfigError
from penstock.tools.planner.verify.check import check

MEASURED = {"ttft_p50": 0.1, "tpot_p95": 0.02, "output_tokens_per_s": 100.0, "good_fraction": 1.0}


def test_within_means_every_time_and_the_throughput():
    near = check([{name: 1.09 * value for name, value in MEASURED.items()}], MEASURED, 0.1)
    assert near.is_within
    for name in ("ttft_p50", "tpot_p95", "output_tokens_per_s"):
        off = check([MEASURED | {name: 0.8 * MEASURED[name]}], MEASURED, 0.1)
        assert not off.is_within
        assert off.worst.name == name
        assert off.worst.error == pytest.approx(-0.2)


def test_a_share_is_shown_and_not_judged():
    outcome = check([MEASURED | {"good_fraction": 0.2}], MEASURED, 0.1)
    assert outcome.is_within
    assert [row.name for row in outcome.rows] == list(MEASURED)


def test_nothing_measured_proves_nothing():
    assert not check([{"ttft_p50": 0.1}], {"ttft_p50": 0.0}, 0.1).is_within
    with pytest.raises(ConfigError, match="nothing to compare"):
        check([{"ttft_p50": 0.1}], {}, 0.1)
    with pytest.raises(ConfigError, match="tolerance"):
        check([MEASURED], MEASURED, 1.5)


def test_a_machine_with_slow_moments_may_have_had_any_of_them():
    moments = [{name: factor * value for name, value in MEASURED.items()} for factor in (0.7, 1.0, 1.6)]
    outcome = check(moments, MEASURED, 0.1)
    assert outcome.is_within
    assert outcome.rows[0].predicted == pytest.approx(0.11)
    assert outcome.rows[0].range == pytest.approx((0.07, 0.16))
    assert not check(moments, {name: 2.0 * value for name, value in MEASURED.items()}, 0.1).is_within
    assert not check(moments, {name: 0.6 * value for name, value in MEASURED.items()}, 0.1).is_within
