"""Matrices of an adapter laid where products read them, from numbers that lie as a file has them."""

from torch import Tensor

from penstock.runtime.ops.op import operation

MOVE = 8
"""Numbers that tell a matrix: where it begins in the source, strides of rows and columns, how many there are of both; where it
goes, and the rows and columns it has there."""


@operation
def lay_matrices(target: Tensor, source: Tensor, moves: Tensor, scales: Tensor) -> None:
    """Each matrix times its scale, row by row, with zeros where it is smaller than its place.

    `moves` is int64 [matrices, 8], `scales` float32 [matrices].
    """
    for move, scale in zip(moves.tolist(), scales.tolist(), strict=True):
        first, row, column, rows, columns, at, all_rows, all_columns = move
        place = target[at : at + all_rows * all_columns].view(all_rows, all_columns)
        place.zero_()
        if rows:
            found = source.as_strided((rows, columns), (row, column), source.storage_offset() + first)
            place[:rows, :columns] = found.float() * scale
