"""`penstock bench` as a user meets it: against the real server over a model of arithmetic, and at its flags."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.bench.config import BenchLoad, BenchTarget, Config, PromptLengths, ReplayedTrace, parse_slo
from penstock.cli.bench.sweep import table_of
from penstock.cli.bench.traffic import load_words, open_trace
from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.metrics.summary import Slo
from tests.server.serving import KEY, ROOT, Server, serving

DOUBTS = {"failures", "over-saturated", "warm-cache", "prompt-lengths", "short-answers", "no-usage", "not-alone"}
ENDED = "vllm:request_success_total"
TRACE = """{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 100, "input_length": 900, "output_length": 6, "hash_ids": [1, 3]}
{"timestamp": 250, "input_length": 40, "output_length": 7, "hash_ids": [4]}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--api-key", KEY, model="oracle:", key=KEY) as running:
        yield running


def bench(server: Server, folder: Path, *words: str) -> dict:
    """The report; whether this machine was quiet enough to call it valid must not decide a test."""
    path = folder / "report.json"
    status = main(["bench", server.url, "--api-key", KEY, "warm-up=2", "--json", str(path), *words])
    report = json.loads(path.read_text())
    assert status == (report["verdict"] != "valid")
    assert not {flag["name"] for flag in report["flags"]} & DOUBTS
    return report


def test_users_of_a_real_server(server, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ("--concurrency", "3", "--num-requests", "12", "--prompts", "50-90", "--answers", "4-9", "--repeats", "2")
    report = bench(server, tmp_path, *words, "--html", str(page), "rows=true")
    assert [run["num_requests"] for run in report["runs"]] == [12, 12]
    for run in report["runs"]:
        assert run["lengths"]["prompt_error_max"] <= 1
        assert run["lengths"]["answer_mean"] == run["lengths"]["answer_asked"]
        assert (
            run["cache"]
            == {"hit_fraction": run["cache"]["hit_fraction"], "source": "the server's metrics"} | run["cache"]
        )
        assert all(row["ttft_s"] > 0.0 and row["error"] is None for row in run["rows"])
    assert report["headlines"]["ttft_p50_ms"]["half_width"] is not None
    assert report["asked"]["api_key"] == "given"
    assert KEY not in json.dumps(report)
    assert "<!doctype html>" in page.read_text()
    printed = capsys.readouterr().out
    assert "closed loop" in printed
    assert "TPOT" in printed or "client-bound" in printed


def test_a_rate_on_completions_with_numbers_as_prompts(server, tmp_path):
    words = ("endpoint=completions", "--rate", "60", "--arrivals", "gamma", "--burstiness", "2")
    report = bench(server, tmp_path, *words, "--num-requests", "30", "--prompts", "64", "--answers", "5")
    assert report["target"]["prompts"] == "token ids"
    assert report["runs"][0]["lengths"]["prompt_error_max"] == 0
    assert report["runs"][0]["rate"] == 60.0


def test_a_trace_is_replayed_and_its_blocks_meet_the_cache(server, tmp_path):
    (tmp_path / "trace.jsonl").write_text(TRACE)
    words = ("endpoint=completions", "--trace", str(tmp_path / "trace.jsonl"), "trace-speed=0.5", "rows=true")
    report = bench(server, tmp_path, *words)
    run = report["runs"][0]
    assert [row["scheduled_s"] for row in run["rows"]] == [0.0, 0.2, 0.5]
    assert [row["prompt"] for row in run["rows"]] == [700, 900, 40]
    assert run["cache"]["hit_fraction"] == pytest.approx(512 / 1640, abs=0.02)


def test_conversations_and_shared_beginnings_meet_the_cache(server, tmp_path):
    words = ("--turns", "3", "--shared-prefix", "128", "--prompts", "40", "--answers", "6")
    report = bench(server, tmp_path, *words, "--num-requests", "4", "--concurrency", "2", "rows=true")
    run = report["runs"][0]
    assert run["num_requests"] == 12
    assert {row["turn"] for row in run["rows"]} == {0, 1, 2}
    assert run["cache"]["hit_fraction"] > 0.3


def test_two_reports_are_compared_and_different_loads_refused(server, tmp_path, capsys):
    words = ("--concurrency", "2", "--num-requests", "4", "--prompts", "40", "--repeats", "2")
    paths = []
    for name, answers in (("a", "3"), ("b", "3"), ("c", "4")):
        folder = tmp_path / name
        folder.mkdir()
        bench(server, folder, *words, "--answers", answers)
        paths.append(str(folder / "report.json"))
    capsys.readouterr()
    assert main(["bench", "compare", paths[0], paths[2]]) == 1
    captured = capsys.readouterr()
    assert "words.answers 3 and 4" in captured.out
    assert "not comparable" in captured.err
    page = tmp_path / "both.html"
    assert main(["bench", "compare", paths[0], paths[1], "force=true", "--html", str(page)]) == 0
    assert "TTFT p50" in capsys.readouterr().out
    assert "first and second" in page.read_text()
    assert "±" in page.read_text()
    assert "+-" not in page.read_text()
    assert main(["bench", "compare", paths[0], paths[1], "--json"]) in (0, 1)
    assert {"is_sound", "faults", "rows"} == set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_tells_what_it_has_and_that_it_is_partial(number, server, tmp_path):
    path = tmp_path / "partial.json"
    words = ["--rate", "20", "--num-requests", "2000", "--prompts", "20", "--answers", "3", "warm-up=0"]
    words.append("stop-saturated=false")  # a busy machine would end it by itself
    # Where these tests run in the background of a shell, their children ignore Ctrl-C as nohup's do.
    heeding = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start = [
        sys.executable,
        "-c",
        heeding + "from penstock.cli.main import main; sys.argv[0] = 'penstock'; sys.exit(main())",
    ]
    command = [*start, "bench", server.url, "--api-key", KEY, "--json", str(path), *words]
    before = server.metric(ENDED, 'finished_reason="length"')
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while server.metric(ENDED, 'finished_reason="length"') < before + 20.0 and process.poll() is None:
            pass
        process.send_signal(number)
        printed, _ = process.communicate()
    assert process.returncode == 130
    assert "partial: interrupted after" in printed
    report = json.loads(path.read_text())
    assert report["is_partial"]
    assert 0 < report["runs"][0]["num_requests"] < 2000
    assert main(["bench", "compare", str(path), str(path)]) == 1


def test_a_wrong_key_is_one_line_with_a_way_out(server, capsys):
    assert main(["bench", server.url, "--api-key", "wrong-key-of-some-length"]) == 2
    assert "give --api-key" in capsys.readouterr().err


def test_targets_are_read():
    assert parse_slo("ttft<500ms, TPOT<0.05s") == Slo(ttft_s=0.5, tpot_s=0.05)
    assert parse_slo("e2e<10s") == Slo(e2e_s=10.0)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft<5", "ttft<xms", "ttft<-1s", "ttft<nans", "p99<5ms", "ttft<1s,ttft<2s", "ttft>5ms"]
)
def test_other_targets_are_refused(text):
    with pytest.raises(ConfigError, match="--slo"):
        parse_slo(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BenchLoad(concurrency=0),
        lambda: BenchLoad(repeats=0),
        lambda: BenchLoad(warm_up=-1),
        lambda: BenchLoad(duration_s=float("nan")),
        lambda: BenchLoad(timeout_s=0.0),
        lambda: PromptLengths(burstiness=-1.0),
        lambda: PromptLengths(arrivals="constant", burstiness=2.0),
        lambda: Config(load=BenchLoad(rate=1.0, ramp_to=2.0), words=PromptLengths(burstiness=2.0)),
        lambda: BenchLoad(ramp_to=2.0),
        lambda: BenchLoad(concurrency=1, rate=1.0),
        lambda: PromptLengths(turns=0),
        lambda: PromptLengths(think_s=float("nan")),
        lambda: BenchTarget(attainment=float("nan")),
        lambda: Config(load=BenchLoad(rate=1.0), recording=ReplayedTrace(trace=Path("x"))),
        lambda: Config(words=PromptLengths(turns=2), recording=ReplayedTrace(trace=Path("x"))),
        lambda: Config(words=PromptLengths(turns=2), endpoint="completions"),
        lambda: Config(target=BenchTarget(find_knee=True), load=BenchLoad(concurrency=3)),
        lambda: Config(target=BenchTarget(find_knee=True), load=BenchLoad(repeats=3)),
    ],
)
def test_what_excludes_itself_is_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(), "100 requests of 8 users who ask again once answered; prompts of sharegpt-prompts tokens"),
        (Config(load=BenchLoad(concurrency=1)), "100 requests of 1 user who asks again once answered; "),
        (Config(load=BenchLoad(rate=4.0, num_requests=1)), "1 request at 4/s (poisson); "),
        (
            Config(load=BenchLoad(rate=4.0), words=PromptLengths(arrivals="gamma")),
            "100 requests at 4/s (gamma, spread 2); ",
        ),
        (
            Config(load=BenchLoad(rate=2.0, ramp_to=8.0, duration_s=5.0)),
            "at a rate that goes from 2/s to 8/s, for 5 s at most",
        ),
        (Config(words=PromptLengths(turns=3, think_s=0.5)), "100 conversations of 8 users"),
        (Config(words=PromptLengths(turns=3, think_s=0.5)), "; 3 turns with 0.5 s between"),
        (
            Config(words=PromptLengths(shared_prefix=128, num_prefixes=2)),
            "; 2 shared beginnings of 128 tokens; prompts of",
        ),
        (Config(target=BenchTarget(find_knee=True)), "rising rates, 30 s each; "),
    ],
)
def test_a_load_is_told_in_words(config, words):
    assert words in load_words(config, None)


def test_what_a_trace_leaves_out_is_told(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE + '{"timestamp": 300, "input_length": 40, "output_length": 0, "hash_ids": [4]}\n')
    config = Config(recording=ReplayedTrace(trace=path, trace_speed=0.5))
    reported = load_words(config, open_trace(config))
    assert reported == f"{path}: 3 requests in 0.5 s; 1 without an answer left out"


@pytest.mark.parametrize(
    ("config", "users"),
    [
        (Config(), 8),
        (Config(load=BenchLoad(concurrency=3)), 3),
        (Config(load=BenchLoad(rate=2.0)), None),
        (Config(recording=ReplayedTrace(trace=Path("x"))), None),
        (Config(target=BenchTarget(find_knee=True)), None),
    ],
)
def test_users_ask_where_nothing_else_says_when(config, users):
    assert config.num_users == users


def test_a_sweep_measures_each_number_of_users_and_tells_them_in_one_table(server, tmp_path, capsys):
    path = tmp_path / "sweep.json"
    words = ["--num-requests", "6", "--prompts", "20", "--answers", "4", "warm-up=1", "--sweep", "1,2", "--json"]
    assert main(["bench", server.url, "--api-key", KEY, *words, str(path)]) in (0, 1)
    found = json.loads(path.read_text())
    assert [report["asked"]["load"]["concurrency"] for report in found["reports"]] == [1, 2]
    table = capsys.readouterr().out
    assert "users" in table
    assert "more tokens/s" in table
    slower = {
        users: {"headlines": {"output_tokens_per_s": {"mean": rate}}, "verdict": ""}
        for users, rate in ((1, 30.0), (2, 24.0))
    }
    assert [row[-2] for row in table_of(slower)[1]] == [None, "-20 %"]
    assert main(["bench", server.url, "--sweep", "1,two"]) == 2
    assert main(["bench", server.url, "--sweep", "1,2", "--rate", "3"]) == 2
