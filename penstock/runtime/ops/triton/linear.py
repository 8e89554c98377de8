"""Products of a few rows with a weight matrix, at the speed the matrix can be read.

A library call wins once there are rows enough to fill the matrix units' tiles; below that it leaves bandwidth unused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.linear import gated_linear, linear
from penstock.runtime.ops.triton.activation import KINDS, gated
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import tiles_of
from penstock.runtime.ops.triton.small_batch import small_batch

MAX_SMALL_BATCH = 32
"""Rows up to which products here take no longer than the library's, and can begin early and gate what they make."""
MAX_NARROW_BATCH, NARROW = 64, 16384
"""The same for matrices of few outputs: the library cannot begin early, which costs as much as they take to read."""


@entry
@triton.jit
def _one(
    x, weight, bias, out, num_out, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One row of x: each program reads ROWS rows of the matrix, with GATES also those num_out further down.

    The first piece of the matrix is on its way before x is there.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = (rows < num_out)[:, None]
    start = rows.to(tl.int64)[:, None] * SIZE
    below = num_out.to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)[None, :]
    inside = present & (columns < SIZE)
    matrix = tl.load(weight + start + columns, mask=inside, other=0.0)
    if GATES:
        second = tl.load(weight + below + start + columns, mask=inside, other=0.0)
    await_others(CHAINS)
    numbers = tl.load(x + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    total = matrix.to(tl.float32) * numbers
    if GATES:
        other = second.to(tl.float32) * numbers
    for begin in range(BLOCK, SIZE, BLOCK):
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
        value = gated(value, up, out.dtype.element_ty, KIND, CLAMP, SHARPNESS)
    tl.store(out + rows, value.to(out.dtype.element_ty), mask=rows < num_out)


def one_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation | None = None,
) -> Tensor:
    size = weight.shape[1]
    num_out = weight.shape[0] // (1 if activation is None else 2)
    out = torch.empty((1, num_out), dtype=x.dtype, device=x.device)
    tiles = tiles_of("one row" if activation is None else "one row gated", size=size)
    _one[(triton.cdiv(num_out, tiles.rows),)](
        x, weight, x if bias is None else bias, out, num_out, size,
        ROWS=tiles.rows, BLOCK=min(tiles.block, triton.next_power_of_2(size)), BIAS=bias is not None,
        GATES=activation is not None, KIND=KINDS[activation or "silu"], CLAMP=CLAMP, SHARPNESS=SHARPNESS,
        **chained(), num_warps=tiles.warps,
    )  # fmt: skip
    return out


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.ndim == 2 and x.shape[0] == 1 and x.is_contiguous() and weight.is_contiguous()


def _small_batch_fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return _is_small_batch(x, weight, MAX_NARROW_BATCH if len(weight) <= NARROW else MAX_SMALL_BATCH)


def _is_small_batch(x: Tensor, weight: Tensor, max_rows: int) -> bool:
    is_within = x.ndim == 2 and 1 < x.shape[0] <= max_rows
    return is_within and x.element_size() == 2 and x.is_contiguous() and weight.is_contiguous()


def _gated_fits(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> bool:
    return _fits(x, weight, bias)


def _gated_small_batch_fits(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> bool:
    return _is_small_batch(x, weight, MAX_SMALL_BATCH)


@gated_linear.kernel("cuda", fits=_gated_fits)
def gated_linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    return one_row(x, weight, bias, activation)


@gated_linear.kernel("cuda", fits=_gated_small_batch_fits)
def gated_linear_small_batch(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    config = tiles_of("gated", weight.shape[0] // 2, x.shape[1])
    return small_batch(x, weight, bias, x.dtype, config, activation=activation)


@linear.kernel("cuda", fits=_fits)
def linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return one_row(x, weight, bias)


@linear.kernel("cuda", fits=_small_batch_fits)
def linear_small_batch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return small_batch(x, weight, bias, x.dtype, tiles_of("linear", *weight.shape))
