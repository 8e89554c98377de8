"""Products with matrices of 4-bit and 8-bit values, which become numbers in registers, on their way to the matrix units.

Many rows are worth a copy of the matrix in floats, which the library multiplies.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.quantized.int8 import LEAST, MOST, Int8, multiply_int8, round_int8
from penstock.runtime.ops.quantized.packed import (
    LANES,
    PackedWords,
    embed_packed,
    gated_linear_packed,
    linear_packed,
    scores_packed,
)
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of
from penstock.runtime.ops.triton.small_batch import MAX_PROGRAMS, counters, sum_parts

MAX_SMALL_BATCH = 128
MAX_TOKENS = 128
"""Rows of x a program multiplies."""
ONE_ROWS = 8
"""Rows of the matrix a program multiplies by a single one."""
MAX_ROUNDED = 32768
LEAST_ROWS = 32
MAX_COPY = 1 << 27
"""Numbers of a matrix that stand in floats at a time."""


@triton.jit
def _value(words, J: tl.constexpr, PER: tl.constexpr):
    """Value J of each word in float32. Laid into the last bits of 2 ** 23 a whole number needs no conversion."""
    if PER == 8:
        return (((words >> (4 * J)) & 15) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    else:
        byte = ((words >> (8 * J)) & 255) ^ 128
        return (byte | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + 128.0)


@triton.jit
def _tiny(words, J: tl.constexpr):
    """Value J of 4 bits as it stands in its word, read as a float32: q * 16 ** place * 2 ** -149, place J or J - 2.

    The bits of the smallest floats count like those of whole numbers, up to 2 ** 24: nothing is shifted or converted.
    """
    if J < 6:
        bits = words & (15 << (4 * J))
    else:
        bits = (words >> 8) & (15 << (4 * J - 8))
    return bits.to(tl.float32, bitcast=True)


@entry
@triton.jit(do_not_specialize=["stride"])
def _one(
    x, values, scales, minimums, bias, out, num_out, stride,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, LANES: tl.constexpr, TAIL: tl.constexpr,
    ROWS: tl.constexpr, QUADS: tl.constexpr, MINIMUM: tl.constexpr, BIAS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """One row of x by ROWS rows of the matrix: QUADS times four words at a time, of which a thread has four neighbours.

    The first words are on their way before x is there.
    """
    inputs: tl.constexpr = LANES * PER
    full_quads: tl.constexpr = SIZE // inputs * (LANES // 4)
    num_quads: tl.constexpr = full_quads + TAIL // 4
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    start = values + bounded.to(tl.int64)[:, None, None] * (full_quads * 4 + TAIL)
    places = tl.arange(0, 4)
    total = tl.zeros([ROWS, QUADS], tl.float32)
    lean = tl.zeros([ROWS, QUADS], tl.float32)
    for begin in range(0, num_quads, QUADS):
        quads = begin + tl.arange(0, QUADS)
        inside = quads < num_quads
        words = tl.load(start + (quads[:, None] * 4 + places[None, :])[None, :, :], mask=inside[None, :, None], other=0)
        if begin == 0:
            await_others(CHAINS)
        first = quads // (LANES // 4) * inputs + quads % (LANES // 4) * 4
        lanes = LANES
        if TAIL:
            is_full = quads < full_quads
            first = tl.where(is_full, first, full_quads * 4 * PER + (quads - full_quads) * 4)
            lanes = tl.where(is_full, LANES, TAIL)
        is_place = (rows < num_out)[:, None] & inside[None, :]
        for j in tl.static_range(PER):
            columns = (first + j * lanes)[:, None] + places[None, :]
            if SIZE % (QUADS * 4 * PER) == 0:
                numbers = tl.load(x + columns).to(tl.float32)
            else:
                numbers = tl.load(x + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
            place = ((first + j * lanes) // GROUP * stride)[None, :] + rows[:, None]
            scale = tl.load(scales + place, mask=is_place, other=0.0).to(tl.float32)
            if PER == 8:
                # Inputs, below 2 ** 27 in magnitude, are made as large as values are small: products end at 2 ** -49.
                larger = numbers * 2.0 ** (100 - 4 * (j if j < 6 else j - 2))
                total += tl.sum(_tiny(words, j) * larger[None, :, :], axis=2) * scale
            else:
                total += tl.sum(_value(words, j, PER) * numbers[None, :, :], axis=2) * scale
            if MINIMUM:
                minimum = tl.load(minimums + place, mask=is_place, other=0.0).to(tl.float32)
                lean += tl.sum(numbers, axis=1)[None, :] * minimum
    if PER == 8:
        total *= 562949953421312.0  # 2 ** 49
    value = tl.sum(total + lean, axis=1)
    if BIAS:
        value += tl.load(bias + bounded).to(tl.float32)
    tl.store(out + rows, value.to(out.dtype.element_ty), mask=rows < num_out)


@entry
@triton.jit(do_not_specialize=["num_rows", "stride"])
def _small_batch(
    x, values, scales, minimums, bias, out, partial, counters, num_rows, num_out, stride,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, LANES: tl.constexpr, TAIL: tl.constexpr,
    PAD: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, MINIMUM: tl.constexpr, BIAS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """PAD rows of x by ROWS rows of the matrix, which are the tall side of the matrix units' tile. Scales of neighbouring
    groups are `stride` apart.

    With SPLITS each program sums a part of the blocks, and the one that ends last adds the parts in their order.
    """
    inputs: tl.constexpr = LANES * PER
    blocks: tl.constexpr = (SIZE + inputs - 1) // inputs
    num_words: tl.constexpr = SIZE // inputs * LANES + TAIL
    span: tl.constexpr = (blocks + SPLITS - 1) // SPLITS
    part = tl.program_id(2)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    is_row = (rows < num_out)[:, None]
    tokens = tl.program_id(0) * PAD + tl.arange(0, PAD)
    is_token = (tokens < num_rows)[None, :]
    lanes = tl.arange(0, LANES)
    start = values + bounded.to(tl.int64)[:, None] * num_words + lanes[None, :]
    source = x + tokens.to(tl.int64)[None, :] * SIZE + lanes[:, None]
    total = tl.zeros([ROWS, PAD], tl.float32)
    await_others(CHAINS)
    for block in range(part * span, tl.minimum(part * span + span, blocks)):
        if TAIL:
            # Of the last block only TAIL lanes are there, and their inputs stand closer.
            step = tl.where(block * inputs + inputs > SIZE, TAIL, LANES)
            words = tl.load(start + block * LANES, mask=(lanes < step)[None, :], other=0)
        else:
            step = LANES
            words = tl.load(start + block * LANES)
        for j in tl.static_range(PER):
            at = block * inputs + j * step
            if TAIL:
                is_input = (lanes < step) & (at + lanes < SIZE)
                numbers = tl.load(source + at, mask=is_token & is_input[:, None], other=0.0)
            else:
                numbers = tl.load(source + at, mask=is_token, other=0.0)
            place = (at // GROUP) * stride + bounded
            plane = _value(words, j, PER) * tl.load(scales + place).to(tl.float32)[:, None]
            if MINIMUM:
                plane += tl.load(minimums + place).to(tl.float32)[:, None]
            total = tl.dot(plane.to(x.dtype.element_ty), numbers, total, input_precision="ieee")
    target = tokens.to(tl.int64)[None, :] * num_out + rows[:, None]
    is_last = True
    if SPLITS > 1:
        counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        wide = tl.num_programs(0).to(tl.int64) * PAD * num_out
        is_last, total = sum_parts(total, partial + target, wide, counter, part, is_row, SPLITS)
    if is_last:
        if BIAS:
            total += tl.load(bias + bounded).to(tl.float32)[:, None]
        tl.store(out + target, total.to(out.dtype.element_ty), mask=is_token & is_row)


@entry
@triton.jit(do_not_specialize=["stride"])
def _widen(
    ids, values, scales, minimums, out, scale_of_all, stride,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, LANES: tl.constexpr, TAIL: tl.constexpr,
    BLOCK: tl.constexpr, MINIMUM: tl.constexpr, LOOKS_UP: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """BLOCK words of one row of the result as numbers; with LOOKS_UP `ids` tell whose."""
    await_others(CHAINS)
    inputs: tl.constexpr = LANES * PER
    full_words: tl.constexpr = SIZE // inputs * LANES
    num_words: tl.constexpr = full_words + TAIL
    target = tl.program_id(0).to(tl.int64)
    row = target
    if LOOKS_UP:
        row = tl.load(ids + target).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(values + row * num_words + offsets, mask=offsets < num_words, other=0)
    first = offsets // LANES * inputs + offsets % LANES
    lanes = LANES
    if TAIL:
        is_full = offsets < full_words
        first = tl.where(is_full, first, full_words * PER + offsets - full_words)
        lanes = tl.where(is_full, LANES, TAIL)
    for j in tl.static_range(PER):
        columns = first + j * lanes
        inside = (columns < SIZE) & (offsets < num_words)
        place = (columns // GROUP) * stride.to(tl.int64) + row
        numbers = _value(words, j, PER) * tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)
        if MINIMUM:
            numbers += tl.load(minimums + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + target * SIZE + columns, (numbers * scale_of_all).to(out.dtype.element_ty), mask=inside)


def small_batch(
    x: Tensor,
    weight: PackedWords,
    bias: Tensor | None,
    dtype: torch.dtype | None = None,
    config: TileConfig | None = None,
) -> Tensor:
    """Up to MAX_FEW rows; the result in `dtype`, if it is not that of x."""
    (num_rows, size), num_out = x.shape, weight.num_rows
    config = config or tiles_of(f"packed {weight.bits}", weight.num_rows, num_rows=num_rows)
    minimums = weight.scales if weight.minimums is None else weight.minimums
    shape = {
        "SIZE": size, "GROUP": weight.group, "PER": weight.values_per_word, "LANES": LANES, "TAIL": weight.tail,
        "MINIMUM": weight.minimums is not None, "BIAS": bias is not None, **chained(),
    }  # fmt: skip
    out = torch.empty((num_rows, num_out), dtype=dtype or x.dtype, device=x.device)
    operands = (x, weight.values, weight.scales, minimums, x if bias is None else bias, out)
    if num_rows == 1:
        _one[(triton.cdiv(num_out, ONE_ROWS),)](
            *operands, num_out, weight.scales.stride(0),
            ROWS=ONE_ROWS, QUADS=min(triton.next_power_of_2(weight.values.shape[1] // 4), 128), **shape, num_warps=4,
        )  # fmt: skip
        return out
    pad = min(max(triton.next_power_of_2(num_rows), 16), MAX_TOKENS if x.element_size() == 2 else MAX_TOKENS // 4)
    tiles = (triton.cdiv(num_rows, pad), triton.cdiv(num_out, config.rows))
    splits = 1 if tiles[0] * tiles[1] > MAX_PROGRAMS else config.splits
    partial = torch.empty((splits, tiles[0] * pad, num_out) if splits > 1 else (0,), device=x.device)
    _small_batch[(*tiles, splits)](
        *operands, partial, counters(x.device), num_rows, num_out, weight.scales.stride(0),
        PAD=pad, ROWS=config.rows, SPLITS=splits, **shape, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out


def widened(weight: PackedWords, dtype: torch.dtype, ids: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """The matrix, or some of its rows, in floats."""
    num_rows = weight.num_rows if ids is None else ids.shape[0]
    out = torch.empty((num_rows, weight.num_columns), dtype=dtype, device=weight.values.device)
    block = min(triton.next_power_of_2(weight.values.shape[1]), 512)
    minimums = weight.scales if weight.minimums is None else weight.minimums
    _widen[(num_rows, triton.cdiv(weight.values.shape[1], block))](
        out if ids is None else ids, weight.values, weight.scales, minimums, out, scale, weight.scales.stride(0),
        SIZE=weight.num_columns, GROUP=weight.group, PER=weight.values_per_word, LANES=LANES, TAIL=weight.tail, BLOCK=block,
        MINIMUM=weight.minimums is not None, LOOKS_UP=ids is not None, **chained(), num_warps=4,
    )  # fmt: skip
    return out


def many_rows(x: Tensor, weight: PackedWords, bias: Tensor | None) -> Tensor:
    """Through a copy of the matrix in floats, a part of it at a time if it is large."""
    step = max(1, MAX_COPY // weight.num_columns)
    if weight.num_rows <= step:
        return functional.linear(x, widened(weight, x.dtype), bias)
    out = torch.empty((x.shape[0], weight.num_rows), dtype=x.dtype, device=x.device)
    for start in range(0, weight.num_rows, step):
        stop = min(start + step, weight.num_rows)
        part = functional.linear(
            x, widened(weight.rows(start, stop), x.dtype), None if bias is None else bias[start:stop]
        )
        out[:, start:stop] = part
    return out


@entry
@triton.jit
def _round(
    x, values, scales,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One row to 8-bit whole numbers. What is not finite spoils its scale."""
    await_others(CHAINS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    numbers = tl.load(x + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(numbers), axis=0), LEAST) + tl.sum(numbers * 0.0, axis=0)
    # Beside 1.5 * 2 ** 23 a float has no bits for what follows the point.
    whole = (numbers * tl.div_rn(MOST, most) + 12582912.0) - 12582912.0
    tl.store(values + row * SIZE + columns, whole.to(tl.int8), mask=inside)
    tl.store(scales + row, tl.div_rn(most, MOST))


@entry
@triton.jit
def _scale(
    sums, x_scales, scales, bias, out, num_out, BLOCK: tl.constexpr, BIAS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """Sums of products of whole numbers as what they stand for."""
    await_others(CHAINS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_out
    numbers = tl.load(sums + row * num_out + columns, mask=inside, other=0).to(tl.float32)
    numbers *= tl.load(scales + columns, mask=inside, other=0.0) * tl.load(x_scales + row)
    if BIAS:
        numbers += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * num_out + columns, numbers.to(out.dtype.element_ty), mask=inside)


@round_int8.kernel("cuda", fits=lambda x: x.is_contiguous() and x.numel() > 0 and x.shape[1] <= MAX_ROUNDED)
def round_rows(x: Tensor) -> Int8:
    num_rows, size = x.shape
    values = torch.empty((num_rows, size), dtype=torch.int8, device=x.device)
    scales = torch.empty(num_rows, device=x.device)
    block = triton.next_power_of_2(size)
    _round[(num_rows,)](
        x, values, scales, SIZE=size, BLOCK=block, MOST=MOST, LEAST=LEAST,
        **chained(), num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return Int8(values, scales)


def _whole_fits(values: Tensor, scales: Tensor, weight: Int8, bias: Tensor | None, dtype: torch.dtype) -> bool:
    return values.is_cuda and len(values) > 0 and not (values.shape[1] % 8 or weight.values.shape[0] % 8)


@multiply_int8.kernel("cuda", fits=_whole_fits)
def multiply_whole(values: Tensor, scales: Tensor, weight: Int8, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """By the library, which takes no fewer than LEAST_ROWS rows: others are filled up with zeros."""
    num_rows, num_out = len(values), len(weight.values)
    if num_rows < LEAST_ROWS:
        values = functional.pad(values, (0, 0, 0, LEAST_ROWS - num_rows))
    sums = torch._int_mm(values, weight.values.t())
    out = torch.empty((num_rows, num_out), dtype=dtype, device=values.device)
    _scale[(num_rows, triton.cdiv(num_out, 1024))](
        sums, scales, weight.scales, scales if bias is None else bias, out, num_out,
        BLOCK=1024, BIAS=bias is not None, **chained(), num_warps=4,
    )  # fmt: skip
    return out


def _is_small_batch(x: Tensor, weight: PackedWords) -> bool:
    return 0 < x.shape[0] <= MAX_SMALL_BATCH and x.is_contiguous() and weight.values.is_contiguous()


@linear_packed.kernel("cuda", fits=lambda x, weight, bias: _is_small_batch(x, weight))
def linear_small_batch(x: Tensor, weight: PackedWords, bias: Tensor | None) -> Tensor:
    return small_batch(x, weight, bias)


@linear_packed.kernel("cuda", fits=lambda x, weight, bias: not _is_small_batch(x, weight))
def linear_many_rows(x: Tensor, weight: PackedWords, bias: Tensor | None) -> Tensor:
    return many_rows(x, weight, bias)


@gated_linear_packed.kernel("cuda", fits=lambda x, weight, bias, activation: _is_small_batch(x, weight))
def gated_linear_small_batch(x: Tensor, weight: PackedWords, bias: Tensor | None, activation: Activation) -> Tensor:
    return gate(small_batch(x, weight, bias), activation)


@gated_linear_packed.kernel("cuda", fits=lambda x, weight, bias, activation: not _is_small_batch(x, weight))
def gated_linear_many_rows(x: Tensor, weight: PackedWords, bias: Tensor | None, activation: Activation) -> Tensor:
    return gate(many_rows(x, weight, bias), activation)


@scores_packed.kernel("cuda", fits=lambda x, weight: _is_small_batch(x, weight))
def scores_small_batch(x: Tensor, weight: PackedWords) -> Tensor:
    return small_batch(x, weight, None, dtype=torch.float32)


@scores_packed.kernel("cuda", fits=lambda x, weight: not _is_small_batch(x, weight))
def scores_many_rows(x: Tensor, weight: PackedWords) -> Tensor:
    return many_rows(x, weight, None).float()


@embed_packed.kernel("cuda")
def embed_rows(ids: Tensor, weight: PackedWords, scale: float, dtype: torch.dtype) -> Tensor:
    return widened(weight, dtype, ids, scale)
