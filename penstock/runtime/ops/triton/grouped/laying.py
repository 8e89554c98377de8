"""Matrices of an adapter laid where products read them, all in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.grouped.laying import MOVE, lay_matrices
from penstock.runtime.ops.triton.host.launch import entry

PROGRAMS = 32
"""Programs of one matrix."""
RUN = 1024


@entry
@triton.jit
def _lay(target, source, moves, scales, MOVE: tl.constexpr, RUN: tl.constexpr):
    move = moves + tl.program_id(0) * MOVE
    first = source + tl.load(move)
    row_stride = tl.load(move + 1)
    column_stride = tl.load(move + 2)
    num_rows = tl.load(move + 3).to(tl.int32)
    num_columns = tl.load(move + 4).to(tl.int32)
    place = target + tl.load(move + 5)
    width = tl.load(move + 7).to(tl.int32)
    size = tl.load(move + 6).to(tl.int32) * width
    scale = tl.load(scales + tl.program_id(0))
    for begin in range(tl.program_id(1) * RUN, size, tl.num_programs(1) * RUN):
        numbers = begin + tl.arange(0, RUN)
        rows = numbers // width
        columns = numbers % width
        there = (numbers < size) & (rows < num_rows) & (columns < num_columns)
        found = tl.load(first + rows * row_stride + columns * column_stride, mask=there, other=0.0)
        tl.store(place + numbers, (found.to(tl.float32) * scale).to(target.dtype.element_ty), mask=numbers < size)


@lay_matrices.kernel("cuda", fits=lambda target, source, moves, scales: len(moves) > 0 and moves.is_contiguous())
def lay_all(target: Tensor, source: Tensor, moves: Tensor, scales: Tensor) -> None:
    _lay[len(moves), PROGRAMS](target, source, moves, scales, MOVE, RUN)
