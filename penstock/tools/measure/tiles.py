"""Tile choices of a GPU as a file: kernel, outputs and inputs of a matrix, and the tile config of its product."""

import json
from pathlib import Path

from penstock.console.files import cache_folder

TILES_VERSION = 1
MAX_ROWS = 4096
NUM_FIELDS = 5
TileRow = tuple[str, int, int, list[int]]


def tiles_path(device: str) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in device.lower())
    return cache_folder() / "tiles" / f"{name}.json"


def read_tiles(path: Path) -> list[TileRow]:
    """Empty where there is no such file, or not one that can be used: the built-in tiles are then taken."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["penstock_tiles"] != TILES_VERSION:
            return []
        rows = [
            (str(kernel), int(num_out), int(size), [int(n) for n in config])
            for kernel, num_out, size, config in data["tiles"]
        ]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    is_sane = all(len(config) == NUM_FIELDS and all(0 < number <= 4096 for number in config) for *_, config in rows)
    return rows if is_sane and len(rows) <= MAX_ROWS else []
