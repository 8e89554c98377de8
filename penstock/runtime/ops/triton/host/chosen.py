"""Tiles that were measured on this very device, in place of the built-in ones, which were measured on an H200."""

from penstock.runtime.ops.triton.small_batch import Cut

CHOSEN: dict[tuple[str, int, int], Cut] = {}
"""By kernel, outputs and inputs of the matrix. Filled at start from a file, never while steps are recorded."""


def use_tiles(rows: "list[tuple[str, int, int, list[int]]]") -> None:
    """Take choices as a file holds them: kernel, outputs, inputs, and the cut's numbers."""
    CHOSEN.update({(kernel, num_out, size): Cut(*cut) for kernel, num_out, size, cut in rows})
