"""8-bit floats: rows rounded in one pass, products of a few rows at the speed the matrix can be read.

Products of many rows go to the library, which scales by row and column.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.models.spec import Activation
from penstock.ops.activation import CLAMP, SHARPNESS
from penstock.ops.fp8 import (
    LEAST,
    MOST,
    Fp8,
    gated_linear_fp8,
    linear_fp8,
    multiply_fp8,
    round_gated,
    round_normed,
    round_rows,
)
from penstock.ops.triton.activation import KINDS, activated

MAX_SIZE = 32768
MAX_FEW = 16


@triton.jit
def _round(
    x, values, scales, SIZE: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """One row, read once; with GATES the row is a pair of halves and its gate is what is rounded."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    source = x + row * (2 * SIZE if GATES else SIZE) + columns
    numbers = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if GATES:
        ups = tl.load(source + SIZE, mask=inside, other=0.0).to(tl.float32)
        numbers = activated(numbers, ups, KIND, CLAMP, SHARPNESS).to(x.dtype.element_ty).to(tl.float32)
        numbers = tl.where(inside, numbers, 0.0)
    most = tl.maximum(tl.max(tl.abs(numbers), axis=0), LEAST)
    rounded = (numbers * tl.div_rn(MOST, most)).to(values.dtype.element_ty)  # NaN stays NaN
    tl.store(values + row * SIZE + columns, rounded, mask=inside)
    tl.store(scales + row, tl.div_rn(most, MOST))


@triton.jit
def _round_normed(
    x, stream, weight, values, scales, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One row: added to the stream, normed and rounded while it is in registers."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    kind = x.dtype.element_ty
    wide = tl.load(x + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        wide += tl.load(stream + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
        kept = wide.to(kind)
        tl.store(stream + row * SIZE + columns, kept, mask=inside)
        wide = kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    normed = (wide * scale * tl.load(weight + columns, mask=inside, other=0.0)).to(kind).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(normed), axis=0), LEAST)
    rounded = (normed * tl.div_rn(MOST, most)).to(values.dtype.element_ty)
    tl.store(values + row * SIZE + columns, rounded, mask=inside)
    tl.store(scales + row, tl.div_rn(most, MOST))


@triton.jit
def _one(
    x, values, scales, bias, out, num_out,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """One row of x: each program reads ROWS rows of the matrix, with GATES also those num_out further down."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    start = values + bounded.to(tl.int64)[:, None] * SIZE
    below = num_out.to(tl.int64) * SIZE
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    other = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        columns = (begin + tl.arange(0, BLOCK))[None, :]
        if EVEN:
            numbers = tl.load(x + columns).to(tl.float32)
            total += tl.load(start + columns).to(tl.float32) * numbers
            if GATES:
                other += tl.load(start + below + columns).to(tl.float32) * numbers
        else:
            numbers = tl.load(x + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
            total += tl.load(start + columns, mask=columns < SIZE, other=0.0).to(tl.float32) * numbers
            if GATES:
                other += tl.load(start + below + columns, mask=columns < SIZE, other=0.0).to(tl.float32) * numbers
    value = tl.sum(total, axis=1) * tl.load(scales + bounded)
    if BIAS:
        value += tl.load(bias + bounded).to(tl.float32)
    if GATES:
        up = tl.sum(other, axis=1) * tl.load(scales + num_out + bounded)
        if BIAS:
            up += tl.load(bias + num_out + bounded).to(tl.float32)
        kind = out.dtype.element_ty
        value = activated(value.to(kind).to(tl.float32), up.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
    tl.store(out + rows, value.to(out.dtype.element_ty), mask=rows < num_out)


@triton.jit(do_not_specialize=["num_rows"])
def _few(
    x, values, scales, bias, out, num_rows, num_out,
    SIZE: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """Up to PAD rows of x: rows of the matrix are the tall side of the matrix units' tile."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    tokens = tl.arange(0, PAD)
    columns = tl.arange(0, BLOCK)
    start = values + bounded.to(tl.int64)[:, None] * SIZE + columns[None, :]
    below = num_out.to(tl.int64) * SIZE
    source = x + tl.minimum(tokens, num_rows - 1)[None, :] * SIZE + columns[:, None]
    kind = x.dtype.element_ty
    total = tl.zeros([ROWS, PAD], tl.float32)
    other = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        if EVEN:
            numbers = tl.load(source + begin)
            matrix = tl.load(start + begin)
        else:
            inside = columns + begin < SIZE
            numbers = tl.load(source + begin, mask=inside[:, None], other=0.0)
            matrix = tl.load(start + begin, mask=inside[None, :], other=0.0)
        total = tl.dot(matrix.to(kind), numbers, total, input_precision="ieee")
        if GATES:
            if EVEN:
                second = tl.load(start + below + begin)
            else:
                second = tl.load(start + below + begin, mask=inside[None, :], other=0.0)
            other = tl.dot(second.to(kind), numbers, other, input_precision="ieee")
    total *= tl.load(scales + bounded)[:, None]
    if BIAS:
        total += tl.load(bias + bounded).to(tl.float32)[:, None]
    if GATES:
        other *= tl.load(scales + num_out + bounded)[:, None]
        if BIAS:
            other += tl.load(bias + num_out + bounded).to(tl.float32)[:, None]
        total = activated(total.to(kind).to(tl.float32), other.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
    target = out + tokens[None, :] * num_out + rows[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=(tokens < num_rows)[None, :] & (rows < num_out)[:, None])


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut: rows of the matrix a program reads, inputs at a time."""

    rows: int
    block: int
    warps: int
    stages: int = 3


ONE = Cut(rows=4, block=2048, warps=8)
FEW = Cut(rows=32, block=256, warps=4, stages=4)


def few_rows(
    x: Tensor, weight: Fp8, bias: Tensor | None, activation: Activation | None = None, cut: Cut | None = None
) -> Tensor:
    """One row by plain sums, up to 64 by the matrix units."""
    num_rows, size = x.shape
    num_out = weight.values.shape[0] // (1 if activation is None else 2)
    cut = cut or (ONE if num_rows == 1 else FEW)
    out = torch.empty((num_rows, num_out), dtype=x.dtype, device=x.device)
    block = max(min(cut.block, triton.next_power_of_2(size)), 16)
    grid = (triton.cdiv(num_out, cut.rows),)
    shape = {
        "SIZE": size, "ROWS": cut.rows, "BLOCK": block, "EVEN": size % block == 0, "BIAS": bias is not None,
        "GATES": activation is not None, "KIND": KINDS[activation or "silu"], "CLAMP": CLAMP, "SHARPNESS": SHARPNESS,
        "num_warps": cut.warps, "num_stages": cut.stages,
    }  # fmt: skip
    operands = (x, *weight, x if bias is None else bias, out)
    if num_rows == 1:
        _one[grid](*operands, num_out, **shape)
    else:
        _few[grid](*operands, num_rows, num_out, PAD=max(triton.next_power_of_2(num_rows), 16), **shape)
    return out


def _launch_round(x: Tensor, size: int, activation: Activation | None) -> Fp8:
    num_rows = x.shape[0]
    values = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, device=x.device)
    block = triton.next_power_of_2(size)
    _round[(num_rows,)](
        x, values, scales, SIZE=size, BLOCK=block, MOST=MOST, LEAST=LEAST,
        GATES=activation is not None, KIND=KINDS[activation or "silu"], CLAMP=CLAMP, SHARPNESS=SHARPNESS,
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return Fp8(values, scales)


@round_rows.kernel("cuda", fits=lambda x: x.is_contiguous() and x.numel() > 0 and x.shape[1] <= MAX_SIZE)
def round_whole_rows(x: Tensor) -> Fp8:
    return _launch_round(x, x.shape[1], None)


def _round_gated_fits(gate_up: Tensor, activation: Activation) -> bool:
    return gate_up.is_contiguous() and gate_up.numel() > 0 and gate_up.shape[1] <= 2 * MAX_SIZE


@round_gated.kernel("cuda", fits=_round_gated_fits)
def round_gated_rows(gate_up: Tensor, activation: Activation) -> Fp8:
    return _launch_round(gate_up, gate_up.shape[1] // 2, activation)


def _round_normed_fits(x: Tensor, stream: Tensor | None, weight: Tensor, eps: float) -> bool:
    is_plain = x.is_contiguous() and (stream is None or stream.is_contiguous())
    return is_plain and x.ndim == 2 and x.numel() > 0 and x.shape[1] <= MAX_SIZE


@round_normed.kernel("cuda", fits=_round_normed_fits)
def round_normed_rows(x: Tensor, stream: Tensor | None, weight: Tensor, eps: float) -> Fp8:
    num_rows, size = x.shape
    values = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, device=x.device)
    block = triton.next_power_of_2(size)
    _round_normed[(num_rows,)](
        x, x if stream is None else stream, weight, values, scales, eps,
        SIZE=size, BLOCK=block, ADDS=stream is not None, MOST=MOST, LEAST=LEAST,
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return Fp8(values, scales)


def _fits(x: Tensor, weight: Fp8, bias: Tensor | None) -> bool:
    return 0 < x.shape[0] <= MAX_FEW and x.is_contiguous() and weight.values.is_contiguous()


def _gated_fits(x: Tensor, weight: Fp8, bias: Tensor | None, activation: Activation) -> bool:
    return _fits(x, weight, bias)


@linear_fp8.kernel("cuda", fits=_fits)
def linear_few_rows(x: Tensor, weight: Fp8, bias: Tensor | None) -> Tensor:
    return few_rows(x, weight, bias)


@gated_linear_fp8.kernel("cuda", fits=_gated_fits)
def gated_linear_few_rows(x: Tensor, weight: Fp8, bias: Tensor | None, activation: Activation) -> Tensor:
    return few_rows(x, weight, bias, activation)


def _scaled_fits(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> bool:
    is_whole = not (values.shape[1] % 16 or weight.values.shape[0] % 16)
    return values.is_cuda and dtype == torch.bfloat16 and is_whole


@multiply_fp8.kernel("cuda", fits=_scaled_fits)
def multiply_scaled(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    product = torch._scaled_mm(
        values, weight.values.t(), scales[:, None], weight.scales[None, :], out_dtype=dtype, use_fast_accum=True
    )
    return product if bias is None else product + bias
