"""Matrices of an adapter laid where products read them, from numbers that lie as a file has them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.ops.op import operation

MOVE = 8
"""Numbers that tell a matrix: where it begins in the source, strides of rows and columns, how many there are of both; where it
goes, and the rows and columns it has there."""


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(35)
    moves = [
        [3, 40, 1, 5, 40, 0, 16, 40],
        [203, 5, 1, 32, 5, 640, 32, 16],
        [0, 1, 32, 32, 5, 1152, 32, 16],
        [0, 0, 0, 0, 0, 1664, 16, 8],
    ]
    told = torch.tensor(moves, device=device), torch.tensor([1.0, 0.5, -2.0, 1.0], device=device)
    for kind, target in ((torch.float16, torch.float32), (torch.float32, torch.float16)):
        source = torch.randn(1000, generator=generator, device=device).to(kind)
        yield torch.full((2000,), 7.0, dtype=target, device=device), source, *told


@operation(_examples)
def lay_matrices(target: Tensor, source: Tensor, moves: Tensor, scales: Tensor) -> None:
    """Each matrix times its scale, row by row, with zeros where it is smaller than its place.

    `moves` is int64 [matrices, 8], `scales` float32 [matrices].
    """
    for told, scale in zip(moves.tolist(), scales.tolist(), strict=True):
        first, row, column, rows, columns, at, all_rows, all_columns = told
        place = target[at : at + all_rows * all_columns].view(all_rows, all_columns)
        place.zero_()
        if rows:
            found = source.as_strided((rows, columns), (row, column), source.storage_offset() + first)
            place[:rows, :columns] = found.float() * scale
