"""Laws of reports: they are JSON, pages hold everything and fetch nothing, and only equals are compared."""

import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest

from penstock.errors import ConfigError
from penstock.tools.bench.knee import Knee, Trial
from penstock.tools.bench.report.compare import compare, read_report
from penstock.tools.bench.report.page import page_of
from penstock.tools.bench.report.plot import HEIGHT, LEFT, RIGHT, WIDTH, Line, plot
from penstock.tools.bench.report.report import HEADLINES, facts_of, figure, knee_words, merged_flags
from tests.bench.figures import COUNT, HEALTHY, answer, measured, report, run


def at(ttft_s: float):
    """Runs that differ a little, around a time to the first token."""
    times = (ttft_s, ttft_s * 1.01, ttft_s * 0.99)
    return [run(measured([answer(n, ttft_s=time) for n in range(COUNT)])) for time in times]


def client_bound():
    return run(measured(health=replace(HEALTHY, cpu_fraction=0.99)))


def knee_report():
    runs = [run(rate=rate) for rate in (1.0, 2.0, 4.0)]
    trials = (Trial(1.0, True), Trial(2.0, True), Trial(4.0, False))
    return report(runs, knee=Knee(2.0, 4.0, trials))


def test_a_search_that_its_server_ended_claims_no_more_than_was_seen():
    trials = (Trial(1.0, True), Trial(2.0, False, "server-gone"))
    found = knee_words(report([run(rate=rate) for rate in (1.0, 2.0)], knee=Knee(1.0, None, trials)))
    assert "server-gone" in found
    assert "at least 1 requests/s" in found
    alone = knee_words(report([run(rate=None)], knee=Knee(None, None, (Trial(1.0, False, "no-success", True),))))
    assert "nothing is known" in alone


@pytest.mark.parametrize(
    ("rate", "beyond", "words"),
    [
        (None, None, "nothing is known of the knee."),
        (2.0, None, "the knee is at least 2 requests/s."),
        (None, 4.0, "the knee is below 4 requests/s."),
        (2.0, 4.0, "the knee is at least 2, below 4 requests/s."),
    ],
)
def test_a_search_that_was_interrupted_tells_what_bounds_it_has(rate, beyond, words):
    assert knee_words(report([run()], knee=Knee(rate, beyond, (), is_partial=True))).endswith(f"interrupted; {words}")


REPORTS = [report([run()]), report(at(0.1)), knee_report(), report([client_bound()])]


@pytest.mark.parametrize("one", REPORTS)
def test_a_report_is_json_and_complete(one):
    text = json.dumps(one, allow_nan=False)
    assert json.loads(text)["schema"] == "penstock-bench"
    assert set(one["runs"][0]["headlines"]) == set(HEADLINES)
    assert len(one["runs"][0]["rows"]) == COUNT


def test_the_mean_of_runs_comes_with_its_interval():
    found = report(at(0.1))["headlines"]["ttft_p50_ms"]
    assert found["mean"] == pytest.approx(100.0)
    assert found["half_width"] == pytest.approx(4.303 * 1.0 / 3**0.5, rel=0.01)
    assert report([run()])["headlines"]["ttft_p50_ms"]["half_width"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.3456, "12.35"), (999.94, "999.9"), (-1577.2, "-1,577"), (1234567.8, "1,234,568")],
)
def test_figures_are_no_powers_of_ten(value, text):
    assert figure(value) == text


def test_a_report_tells_what_was_asked_of_whom():
    facts = dict(facts_of(report([run()])))
    assert facts["load"] == "40 requests at 10/s (poisson)"
    assert facts["good is"] == "ttft<500ms"
    page = page_of([report([run()])])
    assert all(escape(text) in page for text in facts.values())


def test_series_add_up_to_what_was_answered():
    one = report([run()])["runs"][0]
    bin_s = one["series"]["bin_s"]
    assert sum(one["series"]["tokens_per_s"]) * bin_s == pytest.approx(one["summary"]["num_output_tokens"], rel=0.01)
    assert sum(one["series"]["arrivals_per_s"]) * bin_s == pytest.approx(COUNT, rel=0.01)
    mean_open = sum(row["end_s"] - row["scheduled_s"] for row in one["rows"]) / one["summary"]["duration_s"]
    assert sum(one["series"]["in_flight"]) / len(one["series"]["in_flight"]) == pytest.approx(mean_open, rel=0.02)
    assert one["quantiles"]["ttft"] == sorted(one["quantiles"]["ttft"])


def test_doubts_of_all_runs_stand_once_and_the_worst_first():
    broken = run(measured([answer(n, error="x" if n < 20 else "") for n in range(COUNT)]))
    flags = merged_flags([run(), broken, broken, client_bound()])
    assert [flag.name for flag in flags] == ["client-bound", "failures"]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.outside += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action", "data")]


@pytest.mark.parametrize("one", REPORTS)
def test_a_page_fetches_nothing_and_its_plots_are_inside(one):
    text = page_of([one])
    page = Page()
    page.feed(text)
    assert not page.outside
    assert not re.search(r"url\(|@import|<script|<link", text)
    assert ("svg" in page.tags) == (one["verdict"] != "client-bound")
    assert "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).lower().replace("nano", "")


def test_a_latency_that_nothing_had_is_no_zero():
    nothing = report([run(measured([answer(number, error="status 500: no") for number in range(5)]))])
    single = report([run(measured([answer(number, tokens=1) for number in range(5)]))])
    for one, name, is_known in ((nothing, "TTFT p50", False), (single, "TPOT p50", False), (single, "TTFT p50", True)):
        assert (f"<td>{name}, ms</td><td></td>" in page_of([one])) != is_known


def test_a_page_shows_names_as_names():
    text = page_of([report([run()], model="<script>alert(1)</script>")])
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_plots_draw_what_can_be_drawn():
    assert plot("nothing", [Line([])], "x", "y") == ""
    assert plot("zero on a logarithm", [Line([(0.0, 1.0)])], "x", "y", is_logarithmic=True) == ""
    for points in ([(1.0, 1.0)], [(0.0, 0.0), (1e9, 1e-9)], [(5.0, -3.0), (5.0, 3.0)]):
        drawn = plot("t", [Line(points), Line(points, 1)], "x", "y", is_logarithmic=points[0][0] > 0)
        numbers = re.findall(r'points="([^"]*)"', drawn)
        assert len(numbers) == 2
        for pair in numbers[0].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_a_single_value_stands_in_the_middle_of_its_plot():
    drawn = plot("one request", [Line([(50.0, 0.0), (50.0, 1.0)])], "ms", "share", is_logarithmic=True)
    (places,) = re.findall(r'points="([^"]*)"', drawn)
    assert {float(pair.split(",")[0]) for pair in places.split()} == {(LEFT + WIDTH - RIGHT) / 2}


def test_a_difference_is_called_only_where_chance_is_excluded():
    found = compare(report(at(0.1)), report(at(0.2)))
    assert found.is_sound
    by_name = {row.name: row for row in found.rows}
    row = by_name["TTFT p50, ms"]
    assert (row.is_better, round(row.percent)) == (False, 100)
    assert by_name["goodput, %"].is_better is None
    assert {row.is_better for row in compare(report(at(0.1)), report(at(0.1))).rows} == {None}
    back = compare(report(at(0.2)), report(at(0.1)))
    assert {row.name: row for row in back.rows}["TTFT p50, ms"].is_better is True


def test_single_runs_are_not_called_different():
    found = compare(report([run()]), report([run()]))
    assert "single-run" in {fault.name for fault in found.faults}
    assert {row.is_better for row in found.rows} == {None}
    knees = compare(knee_report(), knee_report())
    assert {row.name: row.before for row in knees.rows}["requests/s"] > 0


def test_different_loads_and_invalid_runs_are_not_comparable():
    other = report(at(0.1), workload={"load": {"rate": 12.0}, "seed": 0})
    found = compare(report(at(0.1)), other)
    assert not found.is_sound
    assert "load.rate 10.0 and 12.0" in found.faults[0].text
    assert not compare(report(at(0.1)), report([client_bound()])).is_sound
    broken = report([run(measured([answer(n, error="x" if n < 20 else "") for n in range(COUNT)]))])
    flagged = compare(report(at(0.1)), broken)
    assert flagged.is_sound
    assert any("FAILED" in fault.text for fault in flagged.faults)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no report"),
        ('{"schema": "other"}', "no report"),
        ('{"schema": "penstock-bench", "version": 99}', "version 99"),
        ('{"schema": "penstock-bench", "version": 1}', "is missing"),
    ],
)
def test_other_files_are_refused(tmp_path, text, fault):
    (tmp_path / "report").write_text(text)
    with pytest.raises(ConfigError, match=fault):
        read_report(tmp_path / "report")
    with pytest.raises(ConfigError, match="cannot read"):
        read_report(tmp_path / "none")
