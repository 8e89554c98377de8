"""The native library is opened for the right kernels on every machine, and never with structs that lie otherwise."""

import ctypes
from ctypes import Structure, c_float, c_int32

import pytest

from penstock.errors import EngineError
from penstock.runtime.ops.cpu.library import AMX, AVX2, AVX512, KERNELS, check_layout, choose, open_library

MACHINES = {
    0: "portable",
    AVX2: "avx2",
    AVX2 | AVX512: "avx512",
    AVX2 | AVX512 | AMX: "amx",
    AVX512 | AMX: "portable",
    AVX2 | AMX: "avx2",
}
"""What a machine may have, and the fastest kernels it runs."""
NEEDS = {
    "portable": 0,
    "avx2": AVX2,
    "avx512": AVX2 | AVX512,
    "amx": AVX2 | AVX512 | AMX,
    "amx-emulated": AVX2 | AVX512,
}

pytestmark = pytest.mark.skipif(open_library(1) is None, reason="the native library was not built here")


@pytest.mark.parametrize(("features", "fastest"), MACHINES.items())
def test_every_machine_runs_the_fastest_kernels_it_has(features: int, fastest: str) -> None:
    assert choose("", features) == fastest


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("features", MACHINES)
def test_kernels_are_opened_by_name_where_the_machine_has_all_they_need(kernels: str, features: int) -> None:
    has_all = features & NEEDS[kernels] == NEEDS[kernels]
    assert choose(kernels, features) == (kernels if has_all else None)


def test_unknown_kernels_are_nowhere() -> None:
    assert choose("abacus", AVX2 | AVX512 | AMX) is None


class Pair(Structure):
    _fields_ = (("first", c_int32), ("second", c_float))


def test_a_struct_that_lies_otherwise_is_named() -> None:
    check_layout([8, 0, 4], (Pair,))
    with pytest.raises(EngineError, match=r"lays out Pair otherwise \(its size, second\); build it anew"):
        check_layout([12, 0, 8], (Pair,))
    with pytest.raises(EngineError, match="Pair"):
        check_layout([8], (Pair,))
    with pytest.raises(EngineError, match="not known here"):
        check_layout([8, 0, 4, 16], (Pair,))
    assert ctypes.sizeof(Pair) == 8
