"""Products of a few rows with a weight matrix, at the speed the matrix can be read.

A library call wins once there are rows enough to fill the matrix units' tiles; below that it leaves bandwidth unused.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.models.spec import Activation
from penstock.ops.activation import CLAMP, SHARPNESS
from penstock.ops.linear import gated_linear, linear, logits
from penstock.ops.triton.activation import KINDS, activated
from penstock.ops.triton.chain import await_others, chained

MAX_FEW = 32
MAX_BYTES = 16 << 20


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
        # Rounded as the two products would be if they were stored.
        kind = out.dtype.element_ty
        value = activated(value.to(kind).to(tl.float32), up.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
    value = value.to(x.dtype.element_ty)
    tl.store(out + rows, value.to(out.dtype.element_ty), mask=rows < num_out)


@triton.jit(do_not_specialize=["num_rows"])
def _few(
    x, weight, bias, out, num_rows, num_out, SIZE: tl.constexpr,
    PAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """Up to PAD rows of x: rows of the matrix are the tall side of the matrix units' tile."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    tokens = tl.arange(0, PAD)
    columns = tl.arange(0, BLOCK)
    start = weight + bounded.to(tl.int64)[:, None] * SIZE + columns[None, :]
    below = num_out.to(tl.int64) * SIZE
    source = x + tokens[None, :] * SIZE + columns[:, None]
    is_token = (tokens < num_rows)[None, :]
    await_others(CHAINS)
    total = tl.zeros([ROWS, PAD], tl.float32)
    other = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        if EVEN:
            numbers = tl.load(source + begin, mask=is_token, other=0.0)
            matrix = tl.load(start + begin)
        else:
            inside = columns + begin < SIZE
            numbers = tl.load(source + begin, mask=is_token & inside[:, None], other=0.0)
            matrix = tl.load(start + begin, mask=inside[None, :], other=0.0)
        total = tl.dot(matrix, numbers, total, input_precision="ieee")
        if GATES:
            if EVEN:
                second = tl.load(start + below + begin)
            else:
                second = tl.load(start + below + begin, mask=inside[None, :], other=0.0)
            other = tl.dot(second, numbers, other, input_precision="ieee")
    kind = out.dtype.element_ty
    if BIAS:
        total += tl.load(bias + bounded).to(tl.float32)[:, None]
    if GATES:
        if BIAS:
            other += tl.load(bias + num_out + bounded).to(tl.float32)[:, None]
        total = activated(total.to(kind).to(tl.float32), other.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
    target = out + tokens[None, :] * num_out + rows[:, None]
    tl.store(target, total.to(kind), mask=is_token & (rows < num_out)[:, None])


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product of a few rows is cut: rows of the matrix a program reads, columns at a time, warps, loads under way."""

    rows: int
    block: int
    warps: int
    stages: int


WIDE = Cut(64, 128, 4, 4)
NARROW = Cut(16, 512, 2, 3)
"""For matrices with too few rows to keep the whole chip busy."""
MAX_NARROW = 2048


def one_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    size = weight.shape[1]
    num_out = weight.shape[0] // (1 if activation is None else 2)
    out = torch.empty((1, num_out), dtype=dtype or x.dtype, device=x.device)
    rows, block, warps = (2, 1024, 4) if size <= 1024 else (1, 2048, 8)
    _one[(triton.cdiv(num_out, rows),)](
        x, weight, x if bias is None else bias, out, num_out, size,
        ROWS=rows, BLOCK=min(block, triton.next_power_of_2(size)), BIAS=bias is not None,
        GATES=activation is not None, KIND=KINDS[activation or "silu"], CLAMP=CLAMP, SHARPNESS=SHARPNESS,
        **chained(), num_warps=warps,
    )  # fmt: skip
    return out


def few_rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None, cut: Cut | None = None
) -> Tensor:
    num_rows, size = x.shape
    num_out = weight.shape[0] // (1 if activation is None else 2)
    cut = cut or (NARROW if num_out <= MAX_NARROW else WIDE)
    out = torch.empty((num_rows, num_out), dtype=x.dtype, device=x.device)
    block = max(min(cut.block, triton.next_power_of_2(size)), 16)
    _few[(triton.cdiv(num_out, cut.rows),)](
        x, weight, x if bias is None else bias, out, num_rows, num_out, size,
        PAD=max(triton.next_power_of_2(num_rows), 16), ROWS=cut.rows, BLOCK=block, EVEN=size % block == 0,
        BIAS=bias is not None, GATES=activation is not None, KIND=KINDS[activation or "silu"], CLAMP=CLAMP,
        SHARPNESS=SHARPNESS, **chained(), num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.ndim == 2 and x.shape[0] == 1 and x.is_contiguous() and weight.is_contiguous()


def _few_fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Worth it while a product is short: then it gains more from beginning early than the library's does by being better."""
    is_few = x.ndim == 2 and 1 < x.shape[0] <= MAX_FEW and weight.nbytes <= MAX_BYTES
    return is_few and x.element_size() == 2 and x.is_contiguous() and weight.is_contiguous()


def _gated_fits(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> bool:
    return _fits(x, weight, bias)


def _gated_few_fits(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> bool:
    return _few_fits(x, weight, bias)


@gated_linear.kernel("cuda", fits=_gated_fits)
def gated_linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    return one_row(x, weight, bias, activation)


@gated_linear.kernel("cuda", fits=_gated_few_fits)
def gated_linear_few_rows(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    return few_rows(x, weight, bias, activation)


@linear.kernel("cuda", fits=_fits)
def linear_one_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return one_row(x, weight, bias)


@linear.kernel("cuda", fits=_few_fits)
def linear_few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return few_rows(x, weight, bias)


def _logits_fit(x: Tensor, weight: Tensor, softcap: float | None) -> bool:
    return _fits(x, weight, None) and softcap is None


@logits.kernel("cuda", fits=_logits_fit)
def logits_one_row(x: Tensor, weight: Tensor, softcap: float | None) -> Tensor:
    return one_row(x, weight, None, dtype=torch.float32)
