"""Random damage to lifelike files: every mutant is read whole or refused with our own error, in little time and memory."""

import contextlib
import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.formats.quants import BLOCKS
from penstock.runtime.formats.safetensors import SafetensorsFile

from .files import lifelike_gguf, lifelike_safetensors, rewrite

MAX_SECONDS = 2.0
MAX_GROWTH_BYTES = 64 << 20

NUMBERS = [0, 1, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def mutate(rng: np.random.Generator, data: bytes) -> bytes:
    """One to three kinds of damage."""
    mutant = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, max(1, len(mutant))))
        length = int(rng.integers(1, 24))
        kind = rng.integers(0, 8)
        if kind == 0:
            mutant[at : at + 1] = bytes([rng.integers(0, 256)])
        elif kind == 1:
            mutant[at : at + 1] = bytes([mutant[at] ^ (1 << rng.integers(0, 8))]) if mutant else b""
        elif kind == 2:
            mutant[at : at + 8] = struct.pack("<Q", NUMBERS[rng.integers(0, len(NUMBERS))])
        elif kind == 3:
            mutant[at : at + 4] = struct.pack("<I", NUMBERS[rng.integers(0, len(NUMBERS))] & 0xFFFFFFFF)
        elif kind == 4:
            del mutant[at : at + length]
        elif kind == 5:
            mutant[at:at] = mutant[at : at + length]
        elif kind == 6:
            mutant[at:at] = rng.bytes(length)
        else:
            del mutant[at:]
    return bytes(mutant) or b"\0"


def mutate_safetensors(rng: np.random.Generator, data: bytes) -> bytes:
    """Damage inside the JSON too: words moved and numbers changed, under a header length that fits again."""
    if rng.integers(0, 3) == 0:
        return mutate(rng, data)
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length], data[8 + length :]
    if rng.integers(0, 2):
        header = mutate(rng, header)
    else:
        marks = list(re.finditer(rb'\d+|"[^"]*"|[\[\]{},:]', header))
        first, second = (marks[index] for index in rng.integers(0, len(marks), 2))
        number = str(NUMBERS[rng.integers(0, len(NUMBERS))]).encode()
        word = second[0] if rng.integers(0, 2) else number
        header = header[: first.start()] + word + header[first.end() :]
    return struct.pack("<Q", len(header)) + header + body


def check_readable(checkpoint: Checkpoint) -> None:
    for name in checkpoint.names:
        raw = checkpoint.tensor(name)
        block = BLOCKS[raw.dtype]
        assert raw.num_bytes * block.num_values == raw.num_values * block.num_bytes
        raw.data.sum()  # touches every byte: one outside the file would end the process


TRACED_EVERY = 20

FORMATS: dict[str, tuple[bytes, Callable[[Path], Checkpoint], Callable[[np.random.Generator, bytes], bytes]]] = {
    "gguf": (lifelike_gguf(), GgufFile, mutate),
    "safetensors": (lifelike_safetensors(), SafetensorsFile, mutate_safetensors),
}


def traced_peak(read: Callable[[], object]) -> int:
    """Bytes that reading takes at most, whether it ends well or not."""
    tracemalloc.start()
    with contextlib.suppress(ModelFileError):
        read()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def attack(kind: str, path: Path, num_mutants: int, seed: int) -> int:
    """How many mutants were read; the others were refused."""
    whole, opener, damage = FORMATS[kind]
    rng = np.random.default_rng(seed)
    read, slowest, longest = 0, 0.0, 0
    grown = 0
    for number in range(num_mutants):
        rewrite(path, damage(rng, whole))
        if number % TRACED_EVERY == 0:
            grown = max(grown, traced_peak(lambda: opener(path)))
        started = time.process_time()
        try:
            check_readable(opener(path))
            read += 1
        except ModelFileError as error:
            longest = max(longest, len(str(error)))
        slowest = max(slowest, time.process_time() - started)
    assert slowest < MAX_SECONDS
    assert longest < 1000  # a message never carries a hostile file's text whole
    assert grown < MAX_GROWTH_BYTES
    return read


@pytest.mark.parametrize("kind", FORMATS)
def test_thousands_of_mutants_are_read_or_refused(kind: str, tmp_path: Path) -> None:
    read = attack(kind, tmp_path / "mutant", 4000, seed=0)
    assert 0 < read < 4000  # the damage is neither all fatal nor all harmless, so both paths ran


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_hundred_thousand_mutants_are_read_or_refused(kind: str, tmp_path: Path) -> None:
    assert attack(kind, tmp_path / "mutant", 100_000, seed=1) > 0
