"""Products of a few rows with a matrix, plain or of 8-bit floats, at the speed the matrix can be read.

Rows of the matrix are the tall side of the matrix units' tile, rows of x the short one. A library call wins once there are
rows of x enough to fill larger tiles.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.triton.activation import KINDS, gated
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig

MAX_PROGRAMS = 4096
"""Rows of programs among which columns can be split."""
LINE_BYTES = 128
AHEAD_BYTES = 32 << 10
"""Of the matrix, what a program asks for before it may begin."""
SPARED_BYTES = 8 << 10
"""Of a multiprocessor's memory, what is left to the compiler when loads under way take the rest."""
HOPPER_BYTES = 227 << 10


@triton.jit
def _fetch(places):
    """Asks for what lies at some places, so that it is near by the time it is loaded."""
    asking: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asking, "=r,l", [places.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def sum_parts(total, place, stride, counter, part, is_row, SPLITS: tl.constexpr):
    """Whether this is the last of SPLITS programs to come here, and if so the sum of what they brought, in their order."""
    tl.store(place + part * stride, total, mask=is_row)
    tl.debug_barrier()
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1
    if is_last:
        tl.store(counter, 0)
        total = tl.zeros_like(total)
        for each in range(SPLITS):
            total += tl.load(place + each * stride, mask=is_row, other=0.0, cache_modifier=".cg")
    return is_last, total


@entry
@triton.jit(do_not_specialize=["num_rows"])
def _small_batch(
    x, x_scales, weight, scales, bias, out, partial, counters, num_rows, num_out,
    SIZE: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    LINES: tl.constexpr, LINE: tl.constexpr, EVEN: tl.constexpr, SCALES: tl.constexpr, BIAS: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """Up to PAD rows of x. With GATES also the rows of the matrix num_out further down are multiplied.

    With SPLITS each program sums a part of the columns, and the one that ends last adds the parts in their order.
    """
    part = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    is_row = (rows < num_out)[:, None]
    tokens = tl.arange(0, PAD)
    is_token = (tokens < num_rows)[None, :]
    columns = tl.arange(0, BLOCK)
    start = weight + bounded.to(tl.int64)[:, None] * SIZE + columns[None, :]
    below = num_out.to(tl.int64) * SIZE
    source = x + tokens[None, :] * SIZE + columns[:, None]
    span: tl.constexpr = (SIZE + SPLITS * BLOCK - 1) // (SPLITS * BLOCK) * BLOCK
    if CHAINS and LINES:  # while the last launch ends the memory is idle
        first = tl.minimum(part * span + tl.arange(0, LINES) * LINE, SIZE - 1)[None, :]
        ours = weight + bounded.to(tl.int64)[:, None] * SIZE + first
        _fetch(ours)
        if GATES:
            _fetch(ours + below)
    await_others(CHAINS)
    total = tl.zeros([ROWS, PAD], tl.float32)
    other = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(part * span, tl.minimum(part * span + span, SIZE), BLOCK):
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
    is_last = True
    if SPLITS > 1:
        place = partial + tokens[None, :] * num_out + rows[:, None]
        counter = counters + tl.program_id(0)
        is_last, total = sum_parts(total, place, PAD * num_out, counter, part, is_row, SPLITS)
    if is_last:
        kind = out.dtype.element_ty
        if SCALES:
            total *= tl.load(scales + bounded)[:, None]
            total *= tl.load(x_scales + tokens, mask=tokens < num_rows, other=0.0)[None, :]
        if BIAS:
            total += tl.load(bias + bounded).to(tl.float32)[:, None]
        if GATES:
            if BIAS:
                other += tl.load(bias + num_out + bounded).to(tl.float32)[:, None]
            total = gated(total, other, kind, KIND, CLAMP, SHARPNESS)
        tl.store(out + tokens[None, :] * num_out + rows[:, None], total.to(kind), mask=is_token & is_row)


class Scales(NamedTuple):
    """Of the rows of x, and of those of the matrix."""

    x: Tensor
    weight: Tensor


@cache
def counters(device: torch.device) -> Tensor:
    """Zeros, as every launch leaves them."""
    return torch.zeros(MAX_PROGRAMS, dtype=torch.int32, device=device)


@cache
def room_for_loads(device: torch.device) -> int:
    """Bytes of shared memory. Without a GPU kernels are compiled and interpreted as for an H200."""
    if device.type != "cuda":
        return HOPPER_BYTES - SPARED_BYTES
    return int(driver.active.utils.get_device_properties(device.index)["max_shared_mem"]) - SPARED_BYTES


def small_batch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    config: TileConfig,
    *,
    scales: Scales | None = None,
    activation: Activation | None = None,
) -> Tensor:
    num_rows, size = x.shape
    num_out = weight.shape[0] // (1 if activation is None else 2)
    splits = 1 if activation is not None or triton.cdiv(num_out, config.rows) > MAX_PROGRAMS else config.splits
    out = torch.empty((num_rows, num_out), dtype=dtype, device=x.device)
    block = max(min(config.block, triton.next_power_of_2(size)), 16 if scales is None else 32)
    pad = max(triton.next_power_of_2(num_rows), 16)
    num_read = config.rows * (1 if activation is None else 2)
    lines = min(AHEAD_BYTES // num_read, size // splits * x.element_size()) // LINE_BYTES
    loaded_bytes = (num_read + pad) * block * x.element_size()
    partial = torch.empty((splits, pad, num_out) if splits > 1 else (0,), device=x.device)
    x_scales, weight_scales = scales or (x, x)
    _small_batch[(triton.cdiv(num_out, config.rows), splits)](
        x, x_scales, weight, weight_scales, x if bias is None else bias, out, partial, counters(x.device),
        num_rows, num_out,
        SIZE=size, PAD=pad, ROWS=config.rows, BLOCK=block, SPLITS=splits,
        LINES=1 << lines.bit_length() - 1 if lines else 0, LINE=LINE_BYTES // x.element_size(), EVEN=size % block == 0,
        SCALES=scales is not None, BIAS=bias is not None, GATES=activation is not None,
        KIND=KINDS[activation or "silu"], CLAMP=CLAMP, SHARPNESS=SHARPNESS,
        **chained(), num_warps=config.warps, num_stages=max(min(config.stages, room_for_loads(x.device) // loaded_bytes), 1),
    )  # fmt: skip
    return out
