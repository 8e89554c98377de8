"""Tiles that were measured on this very device, in place of the built-in ones, which were measured on an H200."""

from penstock.runtime.ops.triton.small_batch import TileConfig

CHOSEN: dict[tuple[str, int, int], TileConfig] = {}
"""By kernel, outputs and inputs of the matrix. Filled at start from a file, never while steps are recorded."""


def use_tiles(rows: "list[tuple[str, int, int, list[int]]]") -> None:
    """Take choices as a file holds them: kernel, outputs, inputs, and the config's numbers."""
    CHOSEN.update({(kernel, num_out, size): TileConfig(*config) for kernel, num_out, size, config in rows})
