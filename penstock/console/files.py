"""Files that commands read as whole texts, and write: all or nothing, known to be writable before the work that fills them."""

import json
import os
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

MAX_BYTES = 1 << 30


def read_text(path: Path, way: str = "", most: int = MAX_BYTES) -> str:
    """A text file. An error ends with `way`: what to do instead."""
    way = way and f"; {way}"
    try:
        if path.stat().st_size > most:
            raise ConfigError(f"{path} is larger than {most:,} bytes; give a part of it")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}{way}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text{way}") from error


def read_object(path: Path, kind: str, way: str) -> dict[str, Any]:
    """A JSON object, which an error calls by its kind."""
    text = read_text(path, way)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is no {kind}; {way}")
    return data


def check_writable(*paths: Path | None) -> None:
    """Raise ConfigError now, not after minutes of work, if a file could not be written. Folders on its way are made."""
    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot(path, f"{error.filename}: {error.strerror}") from error
        if path.is_dir():
            raise _cannot(path, "it is a directory")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise _cannot(path, "permission denied")


def write_file(path: Path, text: str) -> None:
    """All of it or nothing: a reader never sees half a file. What is no file (a pipe, /dev/null) is written as it is."""
    is_special = path.exists() and not path.is_file()
    partial = path if is_special else path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        if not is_special:
            partial.replace(path)
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error


def _cannot(path: Path, why: str) -> ConfigError:
    return ConfigError(f"cannot write {path}: {why}; name another file")


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "penstock"
