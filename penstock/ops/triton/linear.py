"""Products of a few rows with a weight matrix, at the speed the matrix can be read.

A library call wins once there are rows enough to fill the matrix units' tiles; below that it leaves bandwidth unused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.ops.linear import linear

MAX_ROWS = 16


@triton.jit
def _one(
    x, weight, bias, out, num_out, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr
):
    """One row of x: each program reads ROWS rows of the matrix."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = (rows < num_out)[:, None]
    start = rows.to(tl.int64)[:, None] * SIZE
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        inside = columns < SIZE
        numbers = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        matrix = tl.load(weight + start + columns[None, :], mask=present & inside[None, :], other=0.0)
        total += matrix.to(tl.float32) * numbers[None, :]
    value = tl.sum(total, axis=1)
    if BIAS:
        value += tl.load(bias + rows, mask=rows < num_out, other=0.0).to(tl.float32)
    tl.store(out + rows, value.to(out.dtype.element_ty), mask=rows < num_out)


@triton.jit
def _few(
    x, weight, bias, out, num_rows, num_out, SIZE: tl.constexpr,
    PAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Up to PAD rows of x: rows of the matrix are the tall side of the matrix units' tile."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = tl.arange(0, PAD)
    start = rows.to(tl.int64)[:, None] * SIZE
    total = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        inside = columns < SIZE
        matrix = tl.load(weight + start + columns[None, :], mask=(rows < num_out)[:, None] & inside[None, :], other=0.0)
        numbers = tl.load(
            x + tokens[None, :] * SIZE + columns[:, None],
            mask=(tokens < num_rows)[None, :] & inside[:, None],
            other=0.0,
        )
        total = tl.dot(matrix, numbers, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + rows, mask=rows < num_out, other=0.0).to(tl.float32)[:, None]
    target = out + tokens[None, :] * num_out + rows[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=(tokens < num_rows)[None, :] & (rows < num_out)[:, None])


def one_row(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int = 1, block: int = 2048, warps: int = 8) -> Tensor:
    num_out, size = weight.shape
    out = torch.empty((1, num_out), dtype=x.dtype, device=x.device)
    block = min(block, triton.next_power_of_2(size))
    _one[(triton.cdiv(num_out, rows),)](
        x, weight, x if bias is None else bias, out, num_out, size, rows, block, bias is not None, num_warps=warps
    )
    return out


def few_rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: int = 16, block: int = 256, warps: int = 4, stages: int = 4
) -> Tensor:
    num_out, size = weight.shape
    out = torch.empty((x.shape[0], num_out), dtype=x.dtype, device=x.device)
    _few[(triton.cdiv(num_out, rows),)](
        x, weight, x if bias is None else bias, out, x.shape[0], num_out, size,
        PAD=16, ROWS=rows, BLOCK=block, BIAS=bias is not None, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.ndim == 2 and x.shape[0] == 1 and x.is_contiguous() and weight.is_contiguous()


@linear.kernel("cuda", fits=_fits)
def linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return one_row(x, weight, bias)
