"""Laws of length distributions."""

from random import Random
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.workload.lengths import (
    SHAREGPT_ANSWERS,
    SHAREGPT_PROMPTS,
    Fixed,
    LengthMixture,
    LogNormal,
    Observed,
    Uniform,
    parse,
)


def draws(lengths, count=20_000):
    random = Random(7)
    return [lengths.draw(random) for _ in range(count)]


@given(
    low=st.integers(1, 50),
    extra=st.integers(0, 50),
    median=st.floats(1, 1000),
    sigma=st.floats(0, 5),
    seed=st.integers(),
)
def test_lengths_stay_in_their_bounds(low, extra, median, sigma, seed):
    random = Random(seed)
    for lengths in (Uniform(low, low + extra), LogNormal(median, sigma, low, low + extra)):
        length = lengths.draw(random)
        assert isinstance(length, int)
        assert low <= length <= low + extra


def test_means_and_medians_are_the_asked_ones():
    assert mean(draws(Uniform(100, 1024))) == pytest.approx(562, rel=0.02)
    assert median(draws(LogNormal(300, 0.8))) == pytest.approx(300, rel=0.03)
    assert mean(draws(SHAREGPT_PROMPTS)) == pytest.approx(165, rel=0.05)
    assert mean(draws(SHAREGPT_ANSWERS)) == pytest.approx(335, rel=0.05)


def test_a_mixture_draws_each_kind_by_its_weight():
    lengths = draws(LengthMixture(((3.0, Fixed(1)), (1.0, Fixed(2)))))
    assert lengths.count(1) / len(lengths) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("512", Fixed(512)),
        (" 100-1024 ", Uniform(100, 1024)),
        ("lognormal:300:0.8", LogNormal(300, 0.8)),
        ("lognormal:300:0.8:10-2000", LogNormal(300, 0.8, 10, 2000)),
        ("ShareGPT-prompts", SHAREGPT_PROMPTS),
        ("sharegpt-answers", SHAREGPT_ANSWERS),
    ],
)
def test_text_forms_are_read(text, lengths):
    assert parse(text) == lengths


@pytest.mark.parametrize(
    "text",
    [
        *("", "zero", "0", "-5", "5-", "9-3", "1-2-3", "nan", "1e9999", "99999999999"),
        *("lognormal:", "lognormal:5", "lognormal:nan:1", "lognormal:5:nan"),
        *("lognormal:5:1:2", "lognormal:5:1:9-3", "lognormal:5:1:1-2:3"),
    ],
)
def test_unreadable_lengths_are_refused_with_the_forms(text):
    with pytest.raises(ConfigError, match=r"write 512|choose"):
        parse(text)


@pytest.mark.parametrize("kinds", [(), ((0.0, Fixed(1)),), ((float("nan"), Fixed(1)),)])
def test_empty_mixtures_are_refused(kinds):
    with pytest.raises(ConfigError, match="mixture"):
        LengthMixture(kinds)


def test_lengths_from_a_file_come_as_often_as_they_stand_in_it(tmp_path):
    (tmp_path / "Lengths").write_text("5\n\n7\n5\n5\n")
    lengths = parse(f"file:{tmp_path / 'Lengths'}")
    assert lengths == Observed((5, 7, 5, 5))
    drawn = draws(lengths)
    assert drawn.count(5) / len(drawn) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("text", ["", "five", "0", "5 6", "9" * 100, "nan", "-1", "99999999999"])
def test_files_of_something_else_are_refused(tmp_path, text):
    (tmp_path / "lengths").write_text(text)
    with pytest.raises(ConfigError, match=r"one whole number|choose"):
        parse(f"file:{tmp_path / 'lengths'}")
    with pytest.raises(ConfigError, match="cannot read"):
        parse(f"file:{tmp_path / 'none'}")
