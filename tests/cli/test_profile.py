"""`penstock profile` from the command line: measures, proves, keeps; `simulate` takes what it kept."""

import json

import pytest

from penstock.assembly.machines import make_engine
from penstock.cli.main import main
from penstock.cli.profile import default_path
from penstock.config import configure
from penstock.console.files import cache_folder
from penstock.runtime.core.request import Request, SamplingParams
from penstock.tools.cost.measured.profile import read_profile
from penstock.tools.measure.this_machine import NAME, find_hardware
from tests.offline import write_chat_model

FIGURES = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s", "e2e_p50_s", "e2e_p95_s", "output_tokens_per_s")


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Made once, the way a user makes it, of a tiny model."""
    folder = tmp_path_factory.mktemp("profile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        model = write_chat_model(folder / "tiny.gguf")
        words = ["profile", str(model), "--seconds", "1", "--max-sequences", "16"]
        assert main(words) == 0
        (path,) = (cache_folder() / "profiles").iterdir()
        hardware = find_hardware(NAME)
    return path, hardware


@pytest.mark.slow
def test_a_profile_tells_model_machine_range_error_and_proof(profile):
    path, _ = profile
    data = json.loads(path.read_text())
    assert data["model"] == "tiny"
    assert data["sizing"]["block_size"] == 16
    assert data["machine"]["num_processors"] >= 1
    assert data["versions"]["python"]
    assert "tiny.gguf" not in path.read_text(), "a name, not somebody's path"
    assert data["fitted"]["most"]["num_chunks"] == 16
    assert data["fitted"]["errors"]["all"]["num_cells"] > 50
    assert set(FIGURES) <= set(data["back_test"])
    for name in FIGURES:
        assert data["back_test"][name]["measured"] > 0.0


@pytest.mark.slow
def test_the_simulator_takes_a_profile(profile, capsys):
    path, _ = profile
    asked = ["simulate", "--profile", str(path), "--num-requests", "30", "--prompts", "5-40", "--answers", "5-20"]
    assert main([*asked, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["sizing"] == json.loads(path.read_text())["sizing"]
    assert data["step_times"]["from"] == "profile"
    assert data["results"]["continuous"]["summary"]["outcomes"]["length"] == 30
    assert main(asked) == 0
    reported = capsys.readouterr().out
    assert "tiny" in reported
    assert "measured by penstock profile" in reported
    assert "beyond what was measured" not in reported


@pytest.mark.slow
def test_the_simulator_says_when_a_profile_is_stretched(profile, capsys):
    path, _ = profile
    words = ["--num-requests", "60", "--rate", "0", "--prompts", "5-40", "--answers", "5-20", "--num-blocks", "900"]
    assert main(["simulate", "--profile", str(path), *words]) == 0
    assert "beyond what was measured (num_chunks 60" in capsys.readouterr().out


@pytest.mark.slow  # two ranks that wait for each other at every sum need two cores to themselves
@pytest.mark.slow
def test_ranks_exchange_as_fast_as_was_measured_between_them(profile, monkeypatch, capsys):
    """By what the profile keeps, and by what is known of this machine since."""
    path, hardware = profile
    kept = read_profile(path.read_text(), str(path)).all_reduce
    assert [each.through for each in kept] == ["shared memory", "gloo"]
    assert hardware.measured_link == kept[0].link("socket")
    words = ["--num-requests", "5", "--prompts", "5-40", "--answers", "5-20", "--pipeline", "2"]
    assert main(["simulate", "--profile", str(path), *words]) == 0
    assert f"all-reduce  {hardware.measured_link}; measured" in capsys.readouterr().out
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parents[2]))
    assert main(["simulate", "--hardware", NAME, "--model", "smollm2-135m", *words]) == 0
    printed = capsys.readouterr().out
    assert "this-machine/2" in printed
    assert f"all-reduce  {hardware.measured_link}; measured" in printed
    assert main(["simulate", "--hardware", f"{NAME}/1", "--model", "smollm2-135m", *words]) == 2
    assert "no part of this machine" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.slow
def test_the_planner_considers_ranks_of_this_machine_by_what_was_measured(profile, monkeypatch, capsys):
    path, hardware = profile
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parents[2]))
    load = ["--prompts", "20-60", "--answers", "3-12", "--rate", "1", "--slo", "ttft<20s,tpot<5s"]
    words = ["plan", "qwen2.5-0.5b", "--hardware", NAME, "--weights", "bf16", "--kv", "bf16", *load]
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (ranks,) = (one for one in data["options"] if one["hardware"] == f"{NAME}/2")
    assert ranks["layout"]["tensor"] == 2
    assert "--tensor 2" in ranks["launch"][0] or "model's directory" in ranks["launch"][0]
    assert data["trust"]["exchanges"] == {f"{NAME}/2": f"{hardware.measured_link}; timed between ranks of it"}


@pytest.mark.slow
def test_a_profile_of_other_blocks_is_refused(profile, capsys):
    path, _ = profile
    assert main(["simulate", "--profile", str(path), "--block-size", "32"]) == 2
    assert "blocks of 16 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\udcff"])
def test_what_is_no_profile_is_refused(text, tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["simulate", "--profile", str(path)]) == 2
    assert "penstock profile" in capsys.readouterr().err
    assert main(["simulate", "--profile", str(tmp_path / "none")]) == 2


def test_a_step_log_of_a_machine_becomes_a_profile_and_replaces_no_measurement(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    log = tmp_path / "steps"
    config = configure(model="scripted:", num_blocks=512)
    engine = make_engine(config, lambda phase: None, log).engine
    for number in range(40):
        params = SamplingParams(max_tokens=5 + number, ignore_eos=True)
        engine.submit(Request(request_id=number, prompt=tuple(range(1, 9 + 3 * number)), params=params))
        for _ in range(3):
            engine.step()
    while engine.has_work:
        engine.step()
    assert main(["profile", "--steps", str(log)]) == 0
    assert "scripted:" in capsys.readouterr().out
    (path,) = (cache_folder() / "profiles").iterdir()
    fitted = read_profile(path.read_text(), str(path))
    assert path == default_path(fitted, "-from-log") != default_path(fitted, "")
    words = ["--num-requests", "20", "--prompts", "5-40", "--answers", "5-20"]
    assert main(["simulate", "--profile", str(path), *words]) == 0


def test_a_log_that_cannot_be_read_is_told(tmp_path, capsys):
    assert main(["profile", "--steps", str(tmp_path / "none")]) == 2
    (tmp_path / "wrong").write_text("words\n")
    assert main(["profile", "--steps", str(tmp_path / "wrong")]) == 2
    assert "step log" in capsys.readouterr().err


@pytest.mark.slow
def test_this_machine_is_measured_once_and_known_then(profile, monkeypatch, tmp_path, capsys):
    path, hardware = profile
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parents[2]))
    assert find_hardware(NAME) == hardware
    assert hardware.measured.bandwidth_bytes_per_s > 1e8
    assert main(["simulate", "--hardware", NAME, "--model", "smollm2-135m", "--num-requests", "5"]) == 0
    reported = capsys.readouterr()
    assert "this-machine" in reported.out
    assert "measuring" not in reported.err


@pytest.mark.slow
def test_a_spoilt_memory_of_this_machine_is_measured_anew(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_hardware(NAME)
    (path,) = (cache_folder() / "machines").iterdir()
    path.write_text(path.read_text().replace("bandwidth_bytes_per_s", "something"))
    capsys.readouterr()
    again = find_hardware(NAME)
    assert "measuring this machine" in capsys.readouterr().err
    assert again.memory_bytes == pytest.approx(found.memory_bytes, rel=0.5)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "9e9"])
def test_bad_options_are_refused(seconds):
    assert main(["profile", "--seconds", seconds]) == 2
