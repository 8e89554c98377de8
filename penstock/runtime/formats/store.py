"""The cache of fetched models: one directory a model, with a manifest of what it must contain.

    CACHE/SLUG/manifest.json    written first, appears with the directory in one rename: a model is there whole or not at all
    CACHE/SLUG/model/...        files taken from a package
    CACHE/hub/...               files fetched from the Hugging Face hub, in its own layout; manifests point there

Owns names on disk, hashes and the commit. Knows nothing of networks.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from penstock.errors import ModelFileError

Progress = Callable[[str, int, int | None], None]
"""progress(stage, done, total): bytes done of a stage, out of a total where one is known."""

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileRecord:
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A fetched model."""

    name: str
    """As one asks for it: hf:ORG/NAME, pypi:PACKAGE==VERSION."""
    root: Path
    """Directory that the files' names are relative to."""
    model: str
    """What to open, relative to `root`: a .gguf file, or "" for the directory itself."""
    files: dict[str, FileRecord]

    @property
    def path(self) -> Path:
        return self.root / self.model

    @property
    def num_bytes(self) -> int:
        return sum(record.num_bytes for record in self.files.values())


def entry_directory(cache: Path, name: str) -> Path:
    """The directory of the model asked for as `name`. The digest keeps names apart that differ in punctuation alone."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", name)[:100]
    return cache / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def find_entry(cache: Path, name: str) -> StoreEntry | None:
    return _read_entry(cache, entry_directory(cache, name))


def installed(cache: Path) -> list[StoreEntry]:
    """Every model already fetched, by name."""
    if not cache.is_dir():
        return []
    entries = (_read_entry(cache, directory) for directory in cache.iterdir() if not directory.name.startswith("."))
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.name)


def record_files(root: Path, names: list[str], progress: Progress) -> dict[str, FileRecord]:
    """The manifest of files that were just fetched."""
    total = sum((root / name).stat().st_size for name in names)
    records: dict[str, FileRecord] = {}
    done = 0
    for name in names:
        digest = hashlib.sha256()
        before = done
        for piece in _pieces(root / name):
            digest.update(piece)
            done += len(piece)
            progress("verify", done, total)
        records[name] = FileRecord(done - before, digest.hexdigest())
    return records


def resized_files(entry: StoreEntry) -> list[str]:
    """Files missing or of another size than recorded: a check that costs nothing."""
    return [name for name, record in entry.files.items() if _size(entry.root / name) != record.num_bytes]


def damaged_files(entry: StoreEntry, progress: Progress = lambda stage, done, total: None) -> list[str]:
    """Files that differ from their record in any byte."""
    damaged = resized_files(entry)
    whole = [name for name in entry.files if name not in damaged]
    found = record_files(entry.root, whole, progress)
    return damaged + [name for name in whole if found[name] != entry.files[name]]


@contextlib.contextmanager
def temporary_directory(cache: Path) -> Iterator[Path]:
    """A fresh directory that shares the cache's disk and is gone afterwards, whatever happens."""
    cache.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".fetching-", dir=cache))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def commit(cache: Path, staged: Path, entry: StoreEntry) -> StoreEntry:
    """Makes the staged directory the model's, in one rename. Files under `staged` move with it.

    Another process may have committed the same model meanwhile: an intact one stays and ours is dropped, so a path handed
    out once stays good.
    """
    home = entry_directory(cache, entry.name)
    inside = entry.root.is_relative_to(staged)
    root = home / entry.root.relative_to(staged) if inside else entry.root
    committed = StoreEntry(entry.name, root, entry.model, entry.files)
    (staged / MANIFEST_NAME).write_text(_manifest(cache, committed), encoding="utf-8")
    for _ in range(8):
        try:
            os.rename(staged, home)
            return committed
        except OSError:
            if not home.exists():
                raise
        other = _read_entry(cache, home)
        if other is not None and other.files == entry.files and not damaged_files(other):
            return other
        with temporary_directory(cache) as discarded, contextlib.suppress(FileNotFoundError):
            os.rename(home, discarded / "damaged")
    raise ModelFileError(
        f"{home} keeps changing while a model is written to it; stop the other process that fetches it"
    )


def _manifest(cache: Path, entry: StoreEntry) -> str:
    files = {name: {"bytes": record.num_bytes, "sha256": record.sha256} for name, record in entry.files.items()}
    root = entry.root.relative_to(cache).as_posix()
    return json.dumps({"name": entry.name, "root": root, "model": entry.model, "files": files}, indent=1)


def _read_entry(cache: Path, directory: Path) -> StoreEntry | None:
    """None where there is no manifest, or one that is not ours or was damaged: the model then counts as not fetched."""
    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
        files = {
            _inside(name): FileRecord(int(record["bytes"]), str(record["sha256"]))
            for name, record in manifest["files"].items()
        }
        entry = StoreEntry(str(manifest["name"]), cache / _inside(manifest["root"]), _inside(manifest["model"]), files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return entry if entry_directory(cache, entry.name) == directory and files else None


def _inside(name: str) -> str:
    """A relative path that cannot leave the directory it is joined to."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        raise ValueError(name)
    return name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 22):
            yield piece
