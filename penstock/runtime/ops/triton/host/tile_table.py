"""Tiles of every kernel family, as data: one table a device, its rows tried in order. Imports neither torch nor triton.

A table was measured on the device it names, in the chain of a whole step; other devices begin with the H200's. What `penstock
tune --kernels` finds on a device comes before the rows of its table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

ANY = (0, 1 << 62)


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How a kernel's work is cut. A family leaves at 1 what it has not."""

    rows: int
    """Rows of the matrix, or queries, that a program takes."""
    block: int
    """Columns, or keys, at a time."""
    warps: int
    stages: int = 1
    """Loads under way."""
    splits: int = 1
    """Programs that the columns, or keys, of one result are split over."""


@dataclass(frozen=True, slots=True)
class TileRow:
    """A config for the shapes within its bounds, both ends included."""

    config: TileConfig
    num_out: tuple[int, int] = ANY
    """Outputs of a product; of an attention its programs."""
    size: tuple[int, int] = ANY
    """Inputs of a product; of an attention the numbers of a head."""
    num_rows: tuple[int, int] = ANY
    """Tokens; of a mixture those of one expert."""
    value_bytes: tuple[int, int] = (1, 2)
    """Of a number that is read; a weight of 4 bits counts as 0."""


def _most(value: int) -> tuple[int, int]:
    return 0, value


def _least(value: int) -> tuple[int, int]:
    return value, ANY[1]


WIDE = (4, 8)
"""Bytes of float32 and wider, which take twice the room."""

H200: dict[str, tuple[TileRow, ...]] = {
    "one row": (
        TileRow(TileConfig(4, 1024, 4), size=_most(1024), value_bytes=ANY),
        TileRow(TileConfig(1, 4096, 8), size=_most(4096), value_bytes=ANY),
        TileRow(TileConfig(1, 2048, 8), value_bytes=ANY),
    ),
    "one row gated": (
        TileRow(TileConfig(4, 1024, 4), size=_most(1024), value_bytes=ANY),
        TileRow(TileConfig(1, 1024, 4), value_bytes=ANY),
    ),
    "linear": (  # few rows of the matrix alone do not keep the whole chip busy
        TileRow(TileConfig(16, 512, 2, 3), num_out=_most(2048), value_bytes=ANY),
        TileRow(TileConfig(64, 128, 4, 6, splits=2), num_out=_most(5120), size=_least(4096), value_bytes=ANY),
        TileRow(TileConfig(64, 128, 4, 6), value_bytes=ANY),
    ),
    "gated": (
        TileRow(TileConfig(16, 512, 2, 3), num_out=_most(2048), value_bytes=ANY),
        TileRow(TileConfig(64, 64, 4, 5), value_bytes=ANY),
    ),
    "fp8": (  # more rows leave less room for loads under way
        TileRow(TileConfig(64, 256, 4, 4, splits=2), num_rows=_least(17), num_out=_most(5120)),
        TileRow(TileConfig(64, 256, 4, 4), num_rows=_least(17)),
        TileRow(TileConfig(128, 128, 8, 4), num_out=_least(16384)),
        TileRow(TileConfig(64, 256, 4, 5), num_out=_least(5121)),
        TileRow(TileConfig(64, 512, 4, 3, splits=2), size=_least(8192)),
        TileRow(TileConfig(64, 256, 4, 4, splits=4)),
    ),
    "packed 4": (
        TileRow(TileConfig(64, 1, 4, 3, splits=4), num_rows=_most(32), num_out=_most(16384)),
        TileRow(TileConfig(64, 1, 4, 3, splits=2), num_rows=_most(32), num_out=_most(65536)),
        TileRow(TileConfig(64, 1, 4, 3), num_rows=_most(32)),
        TileRow(TileConfig(128, 1, 8, 2, splits=4), num_out=_most(16384)),
        TileRow(TileConfig(128, 1, 8, 2, splits=2), num_out=_most(65536)),
        TileRow(TileConfig(128, 1, 8, 2)),
    ),
    "packed 8": (
        TileRow(TileConfig(64, 1, 4, 3, splits=8), num_rows=_most(32), num_out=_most(16384)),
        TileRow(TileConfig(64, 1, 4, 3, splits=2), num_rows=_most(32), num_out=_most(65536)),
        TileRow(TileConfig(64, 1, 4, 3), num_rows=_most(32)),
        TileRow(TileConfig(128, 1, 8, 3, splits=8), num_out=_most(16384)),
        TileRow(TileConfig(128, 1, 8, 3, splits=2), num_out=_most(65536)),
        TileRow(TileConfig(128, 1, 8, 3)),
    ),
    "attention of runs": (
        TileRow(TileConfig(64, 64, 4, 2), size=_most(128)),
        TileRow(TileConfig(32, 32, 4, 2)),
        TileRow(TileConfig(64, 64, 4), size=_most(128), value_bytes=WIDE),
        TileRow(TileConfig(32, 32, 4), value_bytes=WIDE),
    ),
    "attention of tokens": (
        TileRow(TileConfig(1, 32, 4), size=_least(129)),
        TileRow(TileConfig(1, 32, 2, 4), num_out=_most(32)),
        TileRow(TileConfig(1, 128, 4, 3), num_out=_most(512)),
        TileRow(TileConfig(1, 64, 4, 3)),
        TileRow(TileConfig(1, 32, 4), value_bytes=WIDE),
    ),
    "attention of latents": (  # few rows' largest tile is what a multiprocessor's memory holds
        TileRow(TileConfig(1, 64, 8, 3), num_rows=_most(16)),
        TileRow(TileConfig(1, 32, 8, 2)),
        TileRow(TileConfig(1, 16, 4), value_bytes=WIDE),
    ),
    "adapters shrink": (  # with few tokens there are few tiles: several programs share the inputs of one
        TileRow(TileConfig(1, 256, 4, 2, splits=8), num_rows=_most(63), value_bytes=ANY),
        TileRow(TileConfig(1, 64, 4, 2, splits=8), value_bytes=ANY),
    ),
    "adapters expand": (TileRow(TileConfig(128, 1, 4), value_bytes=ANY),),
    "adapters expand gated": (
        TileRow(TileConfig(128, 1, 4), num_rows=_most(63), value_bytes=ANY),
        TileRow(TileConfig(64, 1, 4), value_bytes=ANY),
    ),
    "expert pairs": (TileRow(TileConfig(2, 2048, 8, 3), value_bytes=ANY),),
    "expert sums": (
        TileRow(TileConfig(8, 256, 4, 3), num_rows=_most(1), value_bytes=ANY),
        TileRow(TileConfig(4, 256, 4, 3), value_bytes=ANY),
    ),
    "expert tiles gate": (  # while an expert has few pairs its matrices' bytes are what counts
        TileRow(TileConfig(64, 128, 4, 3), num_rows=_most(16)),
        TileRow(TileConfig(128, 64, 8, 4)),
        TileRow(TileConfig(32, 32, 4, 2), value_bytes=WIDE),
    ),
    "expert tiles down": (
        TileRow(TileConfig(64, 128, 4, 3), num_rows=_most(16)),
        TileRow(TileConfig(128, 64, 8, 4), num_rows=_most(64)),
        TileRow(TileConfig(128, 64, 8, 3)),
        TileRow(TileConfig(32, 32, 4, 2), value_bytes=WIDE),
    ),
}

DEVICES: Mapping[str, dict[str, tuple[TileRow, ...]]] = {"H200": H200}
"""By a part of the device's name. A device that is not named takes the H200's rows where its own table has none."""

ACTIVE: dict[str, tuple[TileRow, ...]] = dict(H200)
"""Written when an engine is made, never while steps are recorded."""


def use_device(name: str, tuned: Iterable[tuple[str, int, int, list[int]]] = ()) -> None:
    """Take a device's table, and before its rows what was tuned there: kernel, outputs, inputs, numbers of a config."""
    ACTIVE.update(H200)
    for part, table in DEVICES.items():
        if part in name:
            ACTIVE.update(table)
    for kernel, num_out, size, numbers in tuned:
        row = TileRow(TileConfig(*numbers), num_out=(num_out, num_out), size=(size, size), value_bytes=ANY)
        ACTIVE[kernel] = (row, *ACTIVE[kernel])
    tiles_of.cache_clear()


@cache
def tiles_of(family: str, num_out: int = 0, size: int = 0, num_rows: float = 0, value_bytes: int = 2) -> TileConfig:
    """The config of a family's kernel for a shape."""
    asked = (num_out, size, num_rows, value_bytes)
    for row in ACTIVE[family]:
        bounds = (row.num_out, row.size, row.num_rows, row.value_bytes)
        if all(low <= value <= high for value, (low, high) in zip(asked, bounds)):
            return row.config
    raise KeyError(f"no tiles of {family} for {asked}")
