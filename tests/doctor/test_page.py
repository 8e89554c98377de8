"""A page read back is what was counted, and the change between two pages is what happened in between."""

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.exposition import GAP_BUCKETS, Buckets, Counter, Gauge, exposition
from penstock.metrics.page import parse_page
from penstock.tools.doctor.page import Change

SECONDS = st.lists(st.floats(0.0, 5.0), max_size=40)


def page_of(*metrics: Counter | Gauge | Buckets):
    return parse_page(exposition(metrics, {"model_name": 'a "b" {c} \\ d\ne'}))


@given(SECONDS, SECONDS, st.sampled_from((0.5, 0.95, 0.99)))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(
    earlier: list[float], later: list[float], fraction: float
) -> None:
    gaps = Buckets("gaps", "", GAP_BUCKETS)
    for value in earlier:
        gaps.add(value)
    before = page_of(gaps)
    for value in later:
        gaps.add(value)
    change = Change(before, page_of(gaps), 1.0)
    found = change.quantile(fraction, "gaps")
    if not later:
        assert math.isnan(found)
        assert math.isnan(change.mean("gaps"))
        return
    true = sorted(later)[math.ceil(fraction * len(later)) - 1]
    place = bisect_left(GAP_BUCKETS, true)
    low = GAP_BUCKETS[place - 1] if place else 0.0
    assert low <= found <= (GAP_BUCKETS[place] if place < len(GAP_BUCKETS) else low)
    assert change.mean("gaps") == pytest.approx(sum(later) / len(later), abs=1e-9)


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.1, 100.0))
def test_a_counter_grows_by_what_was_added(first: int, more: int, seconds: float) -> None:
    counter = Counter("things", "")
    counter.add(first, (("kind", "old"),))
    before = page_of(counter)
    counter.add(more, (("kind", "new"),))
    change = Change(before, page_of(counter), seconds)
    assert change.count("things_total") == more
    assert change.count("things_total", lambda labels: labels["kind"] == "old") == 0
    assert change.rate("things_total") == pytest.approx(more / seconds)
    assert change.gauge("things_total") == first + more
    assert not change.has_restarted


def test_a_counter_that_fell_began_anew() -> None:
    old, new = Counter("things", ""), Counter("things", "")
    old.add(9)
    new.add(4)
    change = Change(page_of(old), page_of(new), 2.0)
    assert change.has_restarted
    assert change.count("things_total") == 4
    engines = Counter("penstock_engine_restarts", "")
    before = page_of(old, engines)
    engines.add(1)
    assert not Change(before, page_of(new, engines), 2.0).has_restarted, "a new engine under the same server"


def test_a_histogram_that_fell_began_anew() -> None:
    old, new = Buckets("gaps", "", GAP_BUCKETS), Buckets("gaps", "", GAP_BUCKETS)
    for _ in range(5):
        old.add(0.02)
    new.add(0.9)
    assert 0.75 <= Change(page_of(old), page_of(new), 1.0).quantile(0.5, "gaps") <= 1.0


def test_engines_are_added_up_and_the_fullest_is_told() -> None:
    before = parse_page('running{engine="0"} 1\nrunning{engine="1"} 1\n')
    after = parse_page('running{engine="0"} 3\nrunning{engine="1"} 4\nfull{engine="0"} 0.2\nfull{engine="1"} 0.7\n')
    change = Change(before, after, 1.0)
    assert (change.gauge("running"), change.gauge_before("running")) == (7, 2)
    assert change.largest("full") == 0.7


def test_what_is_not_there_is_unknown_and_remembered() -> None:
    change = Change({}, parse_page("there 1\n"), 1.0)
    assert change.gauge("new_name", "there") == 1
    assert not change.absent
    unknown = [
        change.count("a"),
        change.gauge("b", "c"),
        change.quantile(0.5, "d"),
        change.mean("e"),
        change.gauge("f"),
    ]
    assert all(math.isnan(value) for value in unknown)
    assert math.isnan(change.label("there", "size"))
    assert math.isnan(change.gauge_before("there"))
    assert change.absent == {"a", "b", "d", "e", "f", "there{size}"}


@pytest.mark.parametrize(
    "text", ["<html>busy</html>", "a b c d", "name{", "name{} x", "name 1 2 3", "\x00", "=1", '{le="1"} 2', ""]
)
def test_lines_that_are_no_samples_are_passed_over(text: str) -> None:
    assert parse_page(f"{text}\nvalue 2 1700000000000\n")["value"] == [({}, 2.0)]
    assert len(parse_page(text)) == 0


def test_labels_are_read_whole() -> None:
    page = parse_page('x{a="1,b=\\"2\\"",le="+Inf"} +Inf')
    assert page["x"] == [({"a": '1,b=\\"2\\"', "le": "+Inf"}, math.inf)]


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    parse_page(text)
