"""Tiles are data: every family answers every shape, and what was tuned on a device comes before its table."""

from collections.abc import Iterator

import pytest

from penstock.runtime.ops.triton.host.tile_table import DEVICES, H200, TileConfig, tiles_of, use_device

SHAPES = [
    {"num_out": num_out, "size": size, "num_rows": num_rows, "value_bytes": value_bytes}
    for num_out in (1, 2048, 5121, 70_000)
    for size in (64, 192, 4096, 14_336)
    for num_rows in (1, 17, 64.5, 4096)
    for value_bytes in (1, 2)
]


@pytest.fixture(autouse=True)
def builtin() -> Iterator[None]:
    yield
    use_device("")


@pytest.mark.parametrize("family", H200)
def test_every_shape_has_tiles_that_kernels_can_take(family: str) -> None:
    for shape in SHAPES:
        tiles = tiles_of(family, **shape)
        assert all(
            value > 0 and not value & (value - 1) for value in (tiles.rows, tiles.block, tiles.warps, tiles.splits)
        )
        assert tiles.stages >= 1


@pytest.mark.parametrize(
    "family",
    ["attention of runs", "attention of tokens", "attention of latents", "expert tiles gate", "expert tiles down"],
)
def test_wide_numbers_take_smaller_tiles(family: str) -> None:
    for shape in SHAPES:
        wide, short = tiles_of(family, **shape | {"value_bytes": 4}), tiles_of(family, **shape | {"value_bytes": 2})
        assert wide.rows * wide.block * wide.stages <= short.rows * short.block * short.stages


def test_tuned_tiles_hold_for_their_shape_alone_and_until_another_device() -> None:
    before, other = tiles_of("linear", 4096, 4096), tiles_of("linear", 4096, 2048)
    use_device("NVIDIA H200", [("linear", 4096, 4096, [32, 64, 2, 5, 1])])
    assert tiles_of("linear", 4096, 4096) == TileConfig(32, 64, 2, 5, 1)
    assert tiles_of("linear", 4096, 2048) == other
    use_device("another")
    assert tiles_of("linear", 4096, 4096) == before


def test_tables_name_families_that_kernels_ask_for() -> None:
    assert all(set(table) <= set(H200) for table in DEVICES.values())
