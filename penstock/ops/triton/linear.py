"""Products of a few rows with a weight matrix, at the speed the matrix can be read.

A library call wins once there are rows enough to fill the matrix units' tiles; below that it leaves bandwidth unused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.models.spec import Activation
from penstock.ops.activation import CLAMP, SHARPNESS
from penstock.ops.linear import gated_linear, linear
from penstock.ops.triton.activation import KINDS, activated

MAX_ROWS = 16


@triton.jit
def _one(
    x, weight, bias, out, num_out, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """One row of x: each program reads ROWS rows of the matrix, with GATES also those num_out further down."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = (rows < num_out)[:, None]
    start = rows.to(tl.int64)[:, None] * SIZE
    below = num_out.to(tl.int64) * SIZE
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    other = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        columns = (begin + tl.arange(0, BLOCK))[None, :]
        inside = present & (columns < SIZE)
        numbers = tl.load(x + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
        total += tl.load(weight + start + columns, mask=inside, other=0.0).to(tl.float32) * numbers
        if GATES:
            other += tl.load(weight + below + start + columns, mask=inside, other=0.0).to(tl.float32) * numbers
    value = tl.sum(total, axis=1)
    if BIAS:
        value += tl.load(bias + rows, mask=rows < num_out, other=0.0).to(tl.float32)
    if GATES:
        up = tl.sum(other, axis=1)
        if BIAS:
            up += tl.load(bias + num_out + rows, mask=rows < num_out, other=0.0).to(tl.float32)
        # Rounded as the two products would be if they were stored.
        kind = out.dtype.element_ty
        value = activated(value.to(kind).to(tl.float32), up.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
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


def one_row(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    size = weight.shape[1]
    num_out = weight.shape[0] // (1 if activation is None else 2)
    out = torch.empty((1, num_out), dtype=x.dtype, device=x.device)
    rows, block, warps = (2, 1024, 4) if size <= 1024 else (1, 2048, 8)
    _one[(triton.cdiv(num_out, rows),)](
        x, weight, x if bias is None else bias, out, num_out, size,
        ROWS=rows, BLOCK=min(block, triton.next_power_of_2(size)), BIAS=bias is not None,
        GATES=activation is not None, KIND=KINDS[activation or "silu"], CLAMP=CLAMP, SHARPNESS=SHARPNESS,
        num_warps=warps,
    )  # fmt: skip
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


def _gated_fits(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> bool:
    return _fits(x, weight, bias)


@gated_linear.kernel("cuda", fits=_gated_fits)
def gated_linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    return one_row(x, weight, bias, activation)


@linear.kernel("cuda", fits=_fits)
def linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return one_row(x, weight, bias)
