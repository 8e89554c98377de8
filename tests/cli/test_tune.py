"""Laws of `tune` around its search: what it kept is found by `serve`, flags win over it, and old settings are not used."""

import asyncio
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock.cli.bench.config import parse_slo
from penstock.cli.main import main
from penstock.cli.serve import found_values
from penstock.cli.tune.command import Config, TunedLoad
from penstock.cli.tune.kept import keep, tuned_path
from penstock.cli.tune.live import LiveContest, LiveServer
from penstock.config import ModelConfig
from penstock.tools.measure.profiles import versions
from penstock.tools.measure.tiles import read_tiles, tiles_path
from penstock.tools.tune.setting import DEFAULT, Setting
from tests.tune.test_search import tuned


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_serve_finds_what_was_tuned_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert found_values({}) == {}
    keep(tuned_path("default"), replace(tuned(winner=True), versions=versions()))
    assert found_values({}) == {"max_batch_tokens": 256}
    assert "tuned: +22 %" in capsys.readouterr().err
    assert found_values({"max_batch_tokens": 64}) == {}
    assert found_values({"tuned": False}) == {}
    assert found_values({"model": "another"}) == {}


def test_settings_of_another_version_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    keep(tuned_path("default"), replace(tuned(winner=True), versions={"penstock": "0.0.1"}))
    assert found_values({}) == {}
    assert "penstock is another version since" in capsys.readouterr().err


def test_damaged_evidence_is_as_good_as_none() -> None:
    keep(tuned_path("default"), tuned(winner=True))
    tuned_path("default").with_suffix(".json").write_text('{"penstock_tuned": 1}')
    assert found_values({}) == {}
    tiles_path("x").parent.mkdir(parents=True)
    tiles_path("x").write_text('{"penstock_tiles": 1, "tiles": [["linear", 1, 2, [0, 1, 1, 1, 1]]]}')
    assert read_tiles(tiles_path("x")) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--minutes", "0"), "--minutes is 0"),
        (("--rate", "1", "--trace", "x"), "leave --rate"),
        (("--turns", "3"), "serve --record"),
        (("--out", "x.json"), ".toml"),
        (("--slo", "fast"), "cannot read"),
        (("--kernels", "--device", "cpu"), "native library"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    words: tuple[str, ...], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *words]) == 2
    assert fault in capsys.readouterr().err


def test_a_setting_that_this_model_does_not_start_with_loses_and_ends_nothing() -> None:
    model, refused = ModelConfig("scripted:step_ms=2"), Setting(max_batch_tokens=4, max_sequences=64)
    load = TunedLoad(Config(model=model).load, rate=5.0, run_s=1.0, vocab_size=256)
    servers = [LiveServer(one, model) for one in (DEFAULT, refused)]
    live = LiveContest(servers, partial(load.plan, 1.0), parse_slo("ttft<9s"), keeps=False, show=lambda text: None)
    asyncio.run(live.run(time.monotonic() + 1.0))
    assert live.good[refused.label] == [0.0]
    assert live.good[DEFAULT.label][0] > 0.0
    assert any("did not start" in doubt for doubt in live.doubts)


@pytest.mark.slow
def test_a_tuned_server_serves_more_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine of 10 ms a step and half a millisecond a token: long prompts delay those who generate."""
    words = ["--slo", "ttft<1500ms,tpot<60ms", "--rate", "4", "--prompts", "100-900", "--answers", "10-40"]
    out = tmp_path / "tuned.toml"
    assert main(["tune", "scripted:step_ms=10,token_ms=0.5", *words, "--minutes", "1.5", "--out", str(out)]) == 0
    assert "settings in" in capsys.readouterr().out
    tried = json.loads(out.with_suffix(".json").read_text())
    assert tried["num_simulated"] > 300
    best = tried["tried"][0]
    assert best["predicted"] > tried["default_good"]
    assert best["measured"] >= tried["default_good"]
