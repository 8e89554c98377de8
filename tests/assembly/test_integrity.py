"""A model that is not what it was is noticed: by its files, and by what it answers."""

from pathlib import Path

import pytest

from penstock.assembly import integrity
from penstock.assembly.integrity import Canary, damage_of
from penstock.cli.main import main
from penstock.runtime.formats.store import StoreEntry, commit, record_files, temporary_directory


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreEntry:
    cache = tmp_path / "cache"
    monkeypatch.setattr(integrity, "default_cache", lambda: cache)
    with temporary_directory(cache) as staged:
        (staged / "model").mkdir()
        (staged / "model" / "weights.bin").write_bytes(bytes(range(256)) * 64)
        files = record_files(staged / "model", ["weights.bin"], lambda stage, done, total: None)
        return commit(cache, staged, StoreEntry("pypi:tiny==1.0", staged / "model", "weights.bin", files))


def test_one_flipped_bit_is_found(fetched: StoreEntry) -> None:
    assert damage_of(fetched.path) == []
    data = bytearray(fetched.path.read_bytes())
    data[1000] ^= 4
    fetched.path.write_bytes(data)
    assert damage_of(fetched.path) == ["weights.bin"]


def test_verify_says_in_its_status_what_is_damaged_and_mends_nothing(
    fetched: StoreEntry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "pypi:tiny==1.0"]) == 0
    whole = fetched.path.read_bytes()
    for damaged in (whole[:1000] + b"?" + whole[1001:], whole[:-1], None):
        fetched.path.unlink()
        if damaged is not None:
            fetched.path.write_bytes(damaged)
        assert main(["verify", "pypi:tiny==1.0"]) == 1
        told = capsys.readouterr().out
        assert "damaged: weights.bin" in told
        assert "penstock pull pypi:tiny==1.0" in told
        assert (fetched.path.read_bytes() if fetched.path.exists() else None) == damaged


def test_files_of_ones_own_have_nothing_to_be_compared_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    assert damage_of(own) == []
    assert main(["verify", str(own)]) == 2
    assert "was not fetched by penstock" in capsys.readouterr().err


def test_a_canary_remembers_the_first_answer(tmp_path: Path) -> None:
    facts = {"version": "1", "path": Path("/model")}
    assert not Canary(tmp_path, facts).has_changed([1, 2, 3])
    assert not Canary(tmp_path, facts).has_changed([1, 2, 3])
    assert Canary(tmp_path, facts).has_changed([1, 2, 4])
    assert not Canary(tmp_path, facts | {"version": "2"}).has_changed([1, 2, 4]), "another version may answer otherwise"


def test_a_place_that_cannot_be_written_keeps_none() -> None:
    canary = Canary(Path("/proc/none"), {})
    assert not canary.has_changed([1])
    assert not canary.has_changed([2])
