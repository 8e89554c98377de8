"""8-bit floats: rows rounded in one pass, products of a few rows at the speed the matrix can be read.

Products of many rows go to the library, which scales by row and column.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.quantized.fp8 import LEAST, MOST, Fp8, multiply_fp8, round_gated, round_normed, round_rows
from penstock.runtime.ops.triton.activation import KINDS, activated
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import tiles_of
from penstock.runtime.ops.triton.small_batch import Scales, small_batch

MAX_SIZE = 32768
MAX_SMALL_BATCH = 64
MAX_SMALL_BATCH_OF_SHORT = 128
"""Rows of x up to which products here are faster than the library's: with any matrix, and with one of few rows."""
MAX_SHORT = 8192


@entry
@triton.jit
def _round(
    x, values, scales, SIZE: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One row, read once; with GATES the row is a pair of halves and its gate is what is rounded."""
    await_others(CHAINS)
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


@entry
@triton.jit
def _round_normed(
    x, stream, weight, values, scales, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """One row: added to the stream, normed and rounded while it is in registers."""
    await_others(CHAINS)
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


def _launch_round(x: Tensor, size: int, activation: Activation | None) -> Fp8:
    num_rows = x.shape[0]
    values = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, device=x.device)
    block = triton.next_power_of_2(size)
    _round[(num_rows,)](
        x, values, scales, SIZE=size, BLOCK=block, MOST=MOST, LEAST=LEAST,
        GATES=activation is not None, KIND=KINDS[activation or "silu"], CLAMP=CLAMP, SHARPNESS=SHARPNESS,
        **chained(), num_warps=min(max(block // 512, 1), 16),
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
        **chained(), num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return Fp8(values, scales)


def _small_batch_fits(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> bool:
    """The matrix units add 8-bit products with fewer bits than float32 has."""
    most = MAX_SMALL_BATCH_OF_SHORT if weight.values.shape[0] <= MAX_SHORT else MAX_SMALL_BATCH
    is_plain = values.is_contiguous() and weight.values.is_contiguous()
    return is_plain and 0 < values.shape[0] <= most and dtype.itemsize == 2


@multiply_fp8.kernel("cuda", fits=_small_batch_fits)
def multiply_small_batch(
    values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    config = tiles_of("fp8", *weight.values.shape, len(values), 1)
    return small_batch(values, weight.values, bias, dtype, config, scales=Scales(scales, weight.scales))


def _scaled_fits(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> bool:
    is_whole = not (values.shape[1] % 16 or weight.values.shape[0] % 16)
    return values.is_cuda and dtype == torch.bfloat16 and is_whole


@multiply_fp8.kernel("cuda", fits=_scaled_fits)
def multiply_scaled(values: Tensor, scales: Tensor, weight: Fp8, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    product = torch._scaled_mm(
        values, weight.values.t(), scales[:, None], weight.scales[None, :], out_dtype=dtype, use_fast_accum=True
    )
    return product if bias is None else product + bias
