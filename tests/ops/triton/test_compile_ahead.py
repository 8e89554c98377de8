"""Kernels asked for and compiled by other processes, on a machine that need not have a GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from penstock.runtime import preload
from penstock.runtime.ops.triton.host import compile_ahead
from penstock.runtime.ops.triton.host.compile_ahead import Compilers
from penstock.runtime.ops.triton.host.launch import Variant, asking, decode_variant, encode_variant
from penstock.runtime.ops.triton.norm import rms_norm_rows
from penstock.runtime.ops.triton.rows import keep_in_one

HOPPER = GPUTarget("cuda", 90, 32)


class Launcher:
    def __init__(self, source: object, metadata: object) -> None:
        """Nothing is launched here."""


class Driver:
    """What Triton asks of a GPU's driver before anything is launched."""

    launcher_cls = Launcher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(driver, "_active", Driver())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # newer versions remark on it if it is not set
    yield
    compile_ahead.HELPERS.end()  # it has begun with these settings


def asked(size: int = 64) -> list[Variant]:
    with asking() as variants:
        for num_rows in (1, 3):
            rms_norm_rows(torch.ones((num_rows, size)), torch.ones(size), 1e-6)
    return variants


def test_a_variant_is_asked_for_once_and_nothing_is_computed_or_compiled(tmp_path: Path) -> None:
    (variant,) = asked()
    assert variant.function.__name__ == "_norm_rows"
    assert not list(tmp_path.iterdir())


def test_rows_anywhere_in_memory_need_one_variant() -> None:
    numbers = torch.zeros((3, 5), dtype=torch.int64)
    with asking() as variants:
        for row in numbers:
            keep_in_one(torch.zeros((4, 9), dtype=torch.int32), row, row, row)
    assert len(variants) == 1


def test_a_launch_finds_what_was_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, with its threads and its GPU, is never forked: a fork could wait for ever for a lock nobody holds."""
    monkeypatch.setattr(os, "fork", None)
    (variant,) = asked(96)
    compilers = Compilers([variant])
    assert compilers.are_ready(wait=True)
    assert compilers.found_new
    found: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda *, cache_hit, **rest: found.append(cache_hit))
    triton.compile(variant.source, target=HOPPER, options=variant.options)
    assert found == [True]
    again = Compilers([variant])
    assert again.are_ready(wait=True)
    assert not again.found_new


def test_nobody_waits_for_what_cannot_be_compiled() -> None:
    (variant,) = asked()
    broken = variant._replace(options=variant.options | {"num_warps": 3})
    assert Compilers([broken, variant]).are_ready(wait=True)


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "COMPILER", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(compile_ahead, "PATIENCE_S", 0.05)
    compilers = Compilers(asked())
    assert not compilers.are_ready()
    assert compilers.are_ready(wait=True)


def test_nobody_waits_for_a_helper_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "COMPILER", (sys.executable, "-c", ""))
    assert Compilers(asked()).are_ready(wait=True)


def test_a_helper_that_has_ended_is_replaced() -> None:
    first = compile_ahead.HELPERS.begin()
    assert compile_ahead.HELPERS.begin() is first
    first.pool.end()
    assert compile_ahead.HELPERS.begin() is not first


def test_a_variant_reaches_another_process_as_it_is() -> None:
    (variant,) = asked()
    told = decode_variant(json.loads(json.dumps(encode_variant(variant))))
    assert told.source.hash() == variant.source.hash()
    assert told.options == variant.options


HASHES = """
import json, random, sys
from penstock.runtime.ops.triton.host.launch import ENTRIES
import penstock.runtime.ops.triton
random.Random(int(sys.argv[1])).shuffle(ENTRIES)
print(json.dumps({entry.function.__name__: entry.function.cache_key for entry in ENTRIES}))
"""


def test_what_one_process_compiles_is_found_by_another_that_needs_it_in_another_order() -> None:
    """Triton before 3.9 hashes a kernel by what was hashed before it."""
    hashes = [
        json.loads(subprocess.check_output([sys.executable, "-c", HASHES, str(seed)], env=os.environ))
        for seed in range(2)
    ]
    assert hashes[0] == hashes[1]
