"""Laws of figures and doubts: formulas hold, each doubt is raised by its own fault and by nothing less."""

from dataclasses import replace

import pytest

from penstock.metrics.summary import Slo
from penstock.metrics.timeline import Outcome
from penstock.tools.bench.client.answer import Answer, AnswerReader, ReportedUsage
from penstock.tools.bench.client.counters import Counters
from penstock.tools.bench.client.health import Health
from penstock.tools.bench.client.prompts import Segment
from penstock.tools.bench.plan import Ask, TrafficPlan, Turn
from penstock.tools.bench.report.figures import FORMULAS, figures_of, row_of
from penstock.tools.bench.report.flags import flags_of
from tests.bench.figures import COUNT, HEALTHY, TARGET, answer, figures, measured


def names(found) -> set[str]:
    return {flag.name for flag in flags_of(found)}


def test_a_clean_run_raises_nothing():
    assert names(figures()) == set()


def test_latencies_count_from_the_scheduled_arrival():
    late = [answer(number) for number in range(COUNT)]
    for one in late:
        one.sent_s = one.scheduled_s + 0.09
    found = figures(measured(late))
    assert found.summary.ttft.p50 == pytest.approx(0.1)
    assert found.send_late_p99_s == pytest.approx(0.09)
    assert names(found) == {"client-bound"}


def test_formulas_hold_and_are_told():
    found = figures(measured([answer(number, ttft_s=0.25, gap_s=0.04, tokens=6) for number in range(COUNT)])).summary
    assert found.ttft.p50 == pytest.approx(0.25)
    assert found.e2e.p50 == pytest.approx(0.25 + 5 * 0.04)
    assert found.tpot.p50 == pytest.approx((found.e2e.p50 - found.ttft.p50) / 5)
    assert found.itl.count == COUNT * 5
    assert found.itl.p50 == pytest.approx(0.04, rel=0.01)
    assert {"TTFT", "TPOT", "ITL", "E2E", "goodput"} <= set(FORMULAS)


@pytest.mark.parametrize(
    ("health", "is_bound"),
    [
        (HEALTHY, False),
        (replace(HEALTHY, cpu_fraction=0.9), True),
        (replace(HEALTHY, lag_p99_s=0.02), False),
        (replace(HEALTHY, lag_p99_s=0.05), True),
    ],
)
def test_a_client_is_judged_by_what_it_measures(health: Health, is_bound: bool):
    found = figures(measured(health=health))
    assert ("client-bound" in names(found)) == is_bound


@pytest.mark.parametrize(("num_failed", "expected"), [(0, set()), (1, {"few-failures"}), (10, {"failures"})])
def test_failures_are_noted_or_shouted(num_failed, expected):
    answers = [answer(number, error="status 500: no" if number < num_failed else "") for number in range(COUNT)]
    found = figures(measured(answers))
    assert names(found) == expected
    assert found.summary.ttft.count == COUNT - num_failed
    assert found.num_failed == num_failed


def test_where_nothing_succeeded_nothing_is_said_of_the_client_or_of_others():
    health = replace(HEALTHY, cpu_fraction=1.0)
    found = flags_of(
        figures(measured([answer(number, error="status 500: no") for number in range(COUNT)], health=health))
    )
    assert [flag.name for flag in found] == ["no-success", "failures"]
    assert "others" not in found[1].text


@pytest.mark.parametrize(("number", "words"), [(1, "a single request"), (2, "p99 of 2 requests"), (100, None)])
def test_few_requests_have_no_percentiles(number, words):
    texts = [flag.text for flag in flags_of(figures(measured([answer(each) for each in range(number)])))]
    assert any(words in text for text in texts) if words else not texts


@pytest.mark.parametrize(("hits", "is_warm"), [(0.0, False), (0.08, False), (0.2, True)])
def test_a_cache_is_warm_beyond_what_the_workload_repeats(hits, is_warm):
    # The server's own two tokens a prompt are 4 % that anyone may find in a cache.
    found = figures(server=Counters(hits * 1000, 1000.0))
    assert found.cache.repeated_fraction == pytest.approx(0.04)
    assert ("warm-cache" in names(found)) == is_warm


def test_what_a_server_refused_is_no_part_of_what_the_workload_repeats():
    # Half of the asks share all they say and are answered; the long ones, refused, share nothing.
    asks = [
        (Segment("shared", 40), Segment(f"short {number}", 10)) if number % 2 else (Segment(f"long {number}", 5000),)
        for number in range(COUNT)
    ]
    plan = TrafficPlan(tuple(Ask(0.1 * number, (Turn(segments, 5),)) for number, segments in enumerate(asks)))
    answers = [answer(number, error="" if number % 2 else "status 400: too long") for number in range(COUNT)]
    found = figures_of(measured(answers), plan, TARGET, Slo(ttft_s=0.5), Counters(780.0, 1000.0))
    assert found.cache.repeated_fraction == pytest.approx(0.84, abs=0.01)
    assert "warm-cache" not in names(found)


def test_usage_tells_of_the_cache_where_metrics_do_not():
    answers = [answer(number) for number in range(COUNT)]
    for one in answers:
        one.usage = ReportedUsage(50, 5, prompt_tokens_details=type("Details", (), {"cached_tokens": 25})())
    assert figures(measured(answers)).cache.hit_fraction == pytest.approx(0.5)


def test_a_row_holds_what_was_asked_and_what_came():
    row = row_of(answer(3))
    assert (row["number"], row["prompt_asked"], row["prompt"], row["answer"], row["error"]) == (3, 50, 50, 5, None)
    assert row["e2e_s"] == pytest.approx(0.1 + 4 * 0.02)


def read(status: int, *parts: bytes) -> Answer:
    one = Answer(0, 0.0, 1, 4)
    reader = AnswerReader(one, 100.0)
    for number, part in enumerate(parts):
        reader.body(part, 101.0 + number)
    reader.end(status, 110.0)
    return one


@pytest.mark.parametrize(
    ("status", "body", "fault", "outcome"),
    [
        (200, b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n', "", Outcome.STOP),
        (200, b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n', "", Outcome.STOP),
        (200, b'data: {"choices":[{"text":"a"}]}\n\n', "ended before the answer did", Outcome.ERROR),
        (200, b"data: [DONE]\n\n", "without a token", Outcome.ERROR),
        (200, b'data: {"error":{"message":"out of water"}}\n\n', "out of water", Outcome.ERROR),
        (200, b"<html>hello</html>", "ended before the answer did", Outcome.ERROR),
        (429, b'{"error":{"message":"too many"}}', "status 429: too many", Outcome.REFUSED),
        (500, b"\xff\xfe", "status 500", Outcome.ERROR),
        (503, b'{"detail":"starting"}', "starting", Outcome.REFUSED),
    ],
)
def test_what_is_an_answer_and_what_is_not(status, body, fault, outcome):
    one = read(status, body)
    assert fault in one.error
    assert bool(one.error) == bool(fault)
    assert one.timeline().outcome is outcome


def test_tokens_that_show_no_text_count_when_the_server_says_so():
    one = read(
        200,
        b'data: {"choices":[{"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":4}}\n\n',
    )
    assert one.is_success
    assert one.timeline().ttft_s == 10.0
    assert one.num_tokens == 4
