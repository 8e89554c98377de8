"""Products with matrices of 4-bit and 8-bit values, at the speed the packed matrix can be read.

One row by plain sums, a few by the matrix units on tiles that are dequantized in registers. Many rows are worth a copy of the
matrix in floats, which the library multiplies.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from penstock.models.spec import Activation
from penstock.ops.activation import CLAMP, SHARPNESS, gate
from penstock.ops.packed import GROUP, Words, embed_packed, gated_linear_packed, linear_packed, logits_packed
from penstock.ops.triton.activation import KINDS, activated
from penstock.ops.triton.chain import await_others, chained
from penstock.ops.triton.few import MAX_PROGRAMS, counters, sum_parts

MAX_FEW = 128
MAX_TOKENS = 128
"""Rows of x a program multiplies."""
MIN_GROUPS = 16
"""A row is cut no finer than this to avoid a last piece that is not whole."""
MAX_COPY = 1 << 27
"""Numbers of a matrix that stand in floats at a time."""


@triton.jit
def _lifted(words, J: tl.constexpr, PER: tl.constexpr):
    """Value J of each word in float32: of 8 bits as it is, of 4 bits as 1 + q / 16 or, J even, as 1 + q / 256.

    Those are numbers whose bits need no conversion, and two neighbours take one shift.
    """
    if PER == 8:
        if J < 4:
            placed = words << (15 - 8 * (J // 2))
        else:
            placed = words >> (8 * (J // 2) - 15)
        if J % 2:
            placed = placed & 0x780000
        else:
            placed = placed & 0x78000
        return (placed | 0x3F800000).to(tl.float32, bitcast=True)
    else:
        return ((words << (24 - 8 * J)) >> 24).to(tl.float32)


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


@triton.jit
def _values(words, scale, minimum, kind: tl.constexpr, J: tl.constexpr, PER: tl.constexpr):
    """Value J of each word as the number it stands for."""
    if PER == 4:
        return (_lifted(words, J, PER) * scale + minimum).to(kind)
    elif J % 2:
        return (_lifted(words, J, PER) * (16 * scale) + (minimum - 16 * scale)).to(kind)
    else:
        return (_lifted(words, J, PER) * (256 * scale) + (minimum - 256 * scale)).to(kind)


@triton.jit
def _one(
    x, values, scales, minimums, bias, out, num_out,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, MINIMUM: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr,
    GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """One row of x: each program reads ROWS rows of the matrix, with GATES also those num_out further down."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    value = _row_sums(x, values, scales, minimums, bounded, SIZE, GROUP, PER, ROWS, BLOCK, EVEN, MINIMUM, CHAINS)
    if BIAS:
        value += tl.load(bias + bounded).to(tl.float32)
    if GATES:
        below = bounded + num_out
        up = _row_sums(x, values, scales, minimums, below, SIZE, GROUP, PER, ROWS, BLOCK, EVEN, MINIMUM, CHAINS)
        if BIAS:
            up += tl.load(bias + below).to(tl.float32)
        kind = out.dtype.element_ty
        value = activated(value.to(kind).to(tl.float32), up.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
    if SOFTCAP > 0:
        value = SOFTCAP * (2 * tl.sigmoid(2 * value / SOFTCAP) - 1)
    tl.store(out + rows, value.to(out.dtype.element_ty), mask=rows < num_out)


@triton.jit
def _row_sums(
    x, values, scales, minimums, rows,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, MINIMUM: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """BLOCK groups of 32 at a time, a thread to a group or half of one. Words are on their way before x is there."""
    group_words: tl.constexpr = 32 // PER
    num_groups: tl.constexpr = SIZE // 32
    starts = values + rows.to(tl.int64)[:, None, None] * (SIZE // PER)
    first_scale = rows.to(tl.int64)[:, None] * (SIZE // GROUP)
    places = tl.arange(0, group_words)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, num_groups, BLOCK):
        groups = begin + tl.arange(0, BLOCK)
        inside = groups < num_groups
        sources = starts + (groups[:, None] * group_words + places[None, :])[None, :, :]
        scale_places = first_scale + (groups // (GROUP // 32))[None, :]
        if EVEN:
            words = tl.load(sources)
            scale = tl.load(scales + scale_places).to(tl.float32)
        else:
            words = tl.load(sources, mask=inside[None, :, None], other=0)
            scale = tl.load(scales + scale_places, mask=inside[None, :], other=0.0).to(tl.float32)
        if begin == 0:
            await_others(CHAINS)
        products = tl.zeros([ROWS, BLOCK, group_words], tl.float32)
        numbers = tl.zeros([BLOCK, group_words], tl.float32)
        for j in tl.static_range(PER):
            inputs = x + groups[:, None] * 32 + j * group_words + places[None, :]
            if EVEN:
                plane = tl.load(inputs).to(tl.float32)
            else:
                plane = tl.load(inputs, mask=inside[:, None], other=0.0).to(tl.float32)
            if MINIMUM:
                numbers += plane
            if PER == 8:
                # Inputs, below 2 ** 27 in magnitude, are made as large as values are small: products end at 2 ** -49.
                plane *= 2.0 ** (100 - 4 * (j if j < 6 else j - 2))
                products += _tiny(words, j) * plane[None, :, :]
            else:
                products += _lifted(words, j, PER) * plane[None, :, :]
        if PER == 8:
            scale *= 562949953421312.0  # 2 ** 49
        total += tl.sum(products, axis=2) * scale
        if MINIMUM:
            if EVEN:
                minimum = tl.load(minimums + scale_places).to(tl.float32)
            else:
                minimum = tl.load(minimums + scale_places, mask=inside[None, :], other=0.0).to(tl.float32)
            total += tl.sum(numbers, axis=1)[None, :] * minimum
    return tl.sum(total, axis=1)


@triton.jit
def _added(total, words, numbers, scale, minimum, kind: tl.constexpr, J: tl.constexpr, PER: tl.constexpr):
    """Products with value J of each word; `numbers` are the inputs these values belong to."""
    return tl.dot(_values(words, scale, minimum, kind, J, PER), numbers, total, input_precision="ieee")


@triton.jit
def _piece(values, scales, minimums, sources, places, inside, EVEN: tl.constexpr, MINIMUM: tl.constexpr):
    """Words, and the scale and minimum of each."""
    if EVEN:
        words = tl.load(values + sources)
        scale = tl.load(scales + places).to(tl.float32)
    else:
        words = tl.load(values + sources, mask=inside, other=0)
        scale = tl.load(scales + places, mask=inside, other=0.0).to(tl.float32)
    minimum = scale * 0.0
    if MINIMUM:
        if EVEN:
            minimum = tl.load(minimums + places).to(tl.float32)
        else:
            minimum = tl.load(minimums + places, mask=inside, other=0.0).to(tl.float32)
    return words, scale, minimum


@triton.jit(do_not_specialize=["num_rows"])
def _few(
    x, values, scales, minimums, bias, out, partial, counters, num_rows, num_out,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr, MINIMUM: tl.constexpr, BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr, GATES: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr,
    CHAINS: tl.constexpr,
):  # fmt: skip
    """PAD rows of x: rows of the matrix are the tall side of the matrix units' tile, BLOCK words of them at a time.

    Value after value of the words is multiplied by the inputs it belongs to. With SPLITS each program sums a part of the
    words, and the one that ends last adds the parts in their order.
    """
    group_words: tl.constexpr = 32 // PER
    num_words: tl.constexpr = SIZE // PER
    span: tl.constexpr = (num_words + SPLITS * BLOCK - 1) // (SPLITS * BLOCK) * BLOCK
    part = tl.program_id(2)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    bounded = tl.minimum(rows, num_out - 1)
    is_row = (rows < num_out)[:, None]
    tokens = tl.program_id(0) * PAD + tl.arange(0, PAD)
    is_token = (tokens < num_rows)[None, :]
    offsets = tl.arange(0, BLOCK)
    start = bounded.to(tl.int64)[:, None] * num_words + offsets[None, :]
    first_scale = bounded.to(tl.int64)[:, None] * (SIZE // GROUP)
    source = x + tokens.to(tl.int64)[None, :] * SIZE + (offsets // group_words * 32 + offsets % group_words)[:, None]
    kind = x.dtype.element_ty
    await_others(CHAINS)
    total = tl.zeros([ROWS, PAD], tl.float32)
    other = tl.zeros([ROWS, PAD], tl.float32)
    for begin in range(part * span, tl.minimum(part * span + span, num_words), BLOCK):
        inside = begin + offsets < num_words
        places = first_scale + ((begin + offsets) // (GROUP // PER))[None, :]
        words, scale, minimum = _piece(values, scales, minimums, start + begin, places, inside[None, :], EVEN, MINIMUM)
        if GATES:
            more, more_scale, more_minimum = _piece(
                values, scales, minimums, start + begin + num_out.to(tl.int64) * num_words,
                places + num_out.to(tl.int64) * (SIZE // GROUP), inside[None, :], EVEN, MINIMUM,
            )  # fmt: skip
        for j in tl.static_range(PER):
            if EVEN:
                numbers = tl.load(source + begin * PER + j * group_words, mask=is_token, other=0.0)
            else:
                is_input = is_token & inside[:, None]
                numbers = tl.load(source + begin * PER + j * group_words, mask=is_input, other=0.0)
            total = _added(total, words, numbers, scale, minimum, kind, j, PER)
            if GATES:
                other = _added(other, more, numbers, more_scale, more_minimum, kind, j, PER)
    target = tokens.to(tl.int64)[None, :] * num_out + rows[:, None]
    is_last = True
    if SPLITS > 1:
        counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        stride = tl.num_programs(0).to(tl.int64) * PAD * num_out
        is_last, total = sum_parts(total, partial + target, stride, counter, part, is_row, SPLITS)
    if is_last:
        if BIAS:
            total += tl.load(bias + bounded).to(tl.float32)[:, None]
        if GATES:
            if BIAS:
                other += tl.load(bias + num_out + bounded).to(tl.float32)[:, None]
            total = activated(total.to(kind).to(tl.float32), other.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)
        if SOFTCAP > 0:
            total = SOFTCAP * (2 * tl.sigmoid(2 * total / SOFTCAP) - 1)
        tl.store(out + target, total.to(out.dtype.element_ty), mask=is_token & is_row)


@triton.jit
def _widen(
    ids, values, scales, minimums, out, scale_of_all,
    SIZE: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, BLOCK: tl.constexpr, MINIMUM: tl.constexpr,
    LOOKS_UP: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """BLOCK words of one row of the result as numbers; with LOOKS_UP `ids` tell whose."""
    await_others(CHAINS)
    group_words: tl.constexpr = 32 // PER
    target = tl.program_id(0).to(tl.int64)
    row = target
    if LOOKS_UP:
        row = tl.load(ids + target).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < SIZE // PER
    words = tl.load(values + row * (SIZE // PER) + offsets, mask=inside, other=0)
    scale_places = row * (SIZE // GROUP) + offsets // (GROUP // PER)
    scale = tl.load(scales + scale_places, mask=inside, other=0.0).to(tl.float32)
    minimum = scale * 0.0
    if MINIMUM:
        minimum = tl.load(minimums + scale_places, mask=inside, other=0.0).to(tl.float32)
    scale, minimum = scale * scale_of_all, minimum * scale_of_all
    places = out + target * SIZE + (offsets // group_words) * 32 + offsets % group_words
    for j in tl.static_range(PER):
        tl.store(places + j * group_words, _values(words, scale, minimum, out.dtype.element_ty, j, PER), mask=inside)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut: rows of the matrix a program reads, of each so many groups of 32 at a time."""

    rows: int
    groups: int
    warps: int
    stages: int = 3
    splits: int = 1


ONE = Cut(rows=8, groups=128, warps=4)


def cut_of(num_rows: int, num_out: int) -> Cut:
    """For more than one row. Few rows of the matrix alone do not keep a whole chip busy."""
    splits = 1 if num_out > 16384 else 2 if num_out > 5120 else 4
    if num_rows <= 32:
        return Cut(rows=64, groups=8, warps=4, stages=3, splits=splits)
    return Cut(rows=128, groups=8, warps=8, stages=2, splits=splits)


def few_rows(
    x: Tensor,
    weight: Words,
    bias: Tensor | None,
    activation: Activation | None = None,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    cut: Cut | None = None,
) -> Tensor:
    """Up to MAX_FEW rows; the result in `dtype`, if it is not that of x."""
    num_rows, size = x.shape
    num_out = weight.num_rows // (1 if activation is None else 2)
    per_word = weight.values_per_word
    cut = cut or (ONE if num_rows == 1 else cut_of(num_rows, num_out))
    out = torch.empty((num_rows, num_out), dtype=dtype or x.dtype, device=x.device)
    groups = min(cut.groups, triton.next_power_of_2(size // GROUP))
    shape = {
        "SIZE": size, "GROUP": weight.group, "PER": per_word, "ROWS": cut.rows, "BIAS": bias is not None,
        "MINIMUM": weight.minimums is not None, "SOFTCAP": softcap or 0.0,
        "GATES": activation is not None, "KIND": KINDS[activation or "silu"], "CLAMP": CLAMP, "SHARPNESS": SHARPNESS,
        "num_warps": cut.warps, "num_stages": cut.stages, **chained(),
    }  # fmt: skip
    minimums = weight.scales if weight.minimums is None else weight.minimums
    operands = (x, weight.values, weight.scales, minimums, x if bias is None else bias, out)
    row_tiles = triton.cdiv(num_out, cut.rows)
    if num_rows == 1:
        while groups > MIN_GROUPS and size % (groups * GROUP):
            groups //= 2
        _one[(row_tiles,)](*operands, num_out, BLOCK=groups, EVEN=size % (groups * GROUP) == 0, **shape)
        return out
    block = max(groups * GROUP // per_word, 16)
    pad = min(max(triton.next_power_of_2(num_rows), 16), MAX_TOKENS if x.element_size() == 2 else MAX_TOKENS // 4)
    token_tiles = triton.cdiv(num_rows, pad)
    splits = 1 if activation is not None or token_tiles * row_tiles > MAX_PROGRAMS else cut.splits
    partial = torch.empty((splits, token_tiles * pad, num_out) if splits > 1 else (0,), device=x.device)
    _few[(token_tiles, row_tiles, splits)](
        *operands, partial, counters(x.device), num_rows, num_out,
        PAD=pad, BLOCK=block, SPLITS=splits, EVEN=size % (block * per_word) == 0, **shape,
    )  # fmt: skip
    return out


def widened(weight: Words, dtype: torch.dtype, ids: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """The matrix, or some of its rows, in floats."""
    num_rows = weight.num_rows if ids is None else ids.shape[0]
    out = torch.empty((num_rows, weight.num_columns), dtype=dtype, device=weight.values.device)
    block = min(triton.next_power_of_2(weight.values.shape[1]), 512)
    minimums = weight.scales if weight.minimums is None else weight.minimums
    _widen[(num_rows, triton.cdiv(weight.values.shape[1], block))](
        out if ids is None else ids, weight.values, weight.scales, minimums, out, scale,
        SIZE=weight.num_columns, GROUP=weight.group, PER=weight.values_per_word, BLOCK=block,
        MINIMUM=weight.minimums is not None, LOOKS_UP=ids is not None, **chained(), num_warps=4,
    )  # fmt: skip
    return out


def many_rows(x: Tensor, weight: Words, bias: Tensor | None) -> Tensor:
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


def _is_few(x: Tensor, weight: Words) -> bool:
    return 0 < x.shape[0] <= MAX_FEW and x.is_contiguous() and weight.values.is_contiguous()


@linear_packed.kernel("cuda", fits=lambda x, weight, bias: _is_few(x, weight))
def linear_few_rows(x: Tensor, weight: Words, bias: Tensor | None) -> Tensor:
    return few_rows(x, weight, bias)


@linear_packed.kernel("cuda", fits=lambda x, weight, bias: not _is_few(x, weight))
def linear_many_rows(x: Tensor, weight: Words, bias: Tensor | None) -> Tensor:
    return many_rows(x, weight, bias)


@gated_linear_packed.kernel("cuda", fits=lambda x, weight, bias, activation: _is_few(x, weight))
def gated_linear_few_rows(x: Tensor, weight: Words, bias: Tensor | None, activation: Activation) -> Tensor:
    return few_rows(x, weight, bias, activation)


@gated_linear_packed.kernel("cuda", fits=lambda x, weight, bias, activation: not _is_few(x, weight))
def gated_linear_many_rows(x: Tensor, weight: Words, bias: Tensor | None, activation: Activation) -> Tensor:
    return gate(many_rows(x, weight, bias), activation)


@logits_packed.kernel("cuda", fits=lambda x, weight, softcap: _is_few(x, weight))
def logits_few_rows(x: Tensor, weight: Words, softcap: float | None) -> Tensor:
    return few_rows(x, weight, None, softcap=softcap, dtype=torch.float32)


@logits_packed.kernel("cuda", fits=lambda x, weight, softcap: not _is_few(x, weight))
def logits_many_rows(x: Tensor, weight: Words, softcap: float | None) -> Tensor:
    scores = many_rows(x, weight, None).float()
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


@embed_packed.kernel("cuda")
def embed_rows(ids: Tensor, weight: Words, scale: float, dtype: torch.dtype) -> Tensor:
    return widened(weight, dtype, ids, scale)
