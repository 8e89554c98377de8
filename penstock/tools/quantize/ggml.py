"""GGUF's block formats, made: the inverse of `formats.quants`, with the search for scales that llama.cpp does.

Rows [n, columns] in float32 become bytes [n, row bytes]. An importance per column (the mean square of what calibration text
multiplies it with) weighs errors; without one, a value's own size does. All blocks of a run are searched at once. Half goes to
even (`np.rint`), as llama.cpp's trick with the mantissa does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.runtime.formats.mapping import Bytes
from penstock.runtime.formats.quants import BLOCKS, LAYOUTS, Floats

Importance = Floats | None
AT_ONCE = 1 << 16
"""Values searched at once: what they need stays in the processor's cache."""
TINY = np.float32(1e-15)


def encode(dtype: str, rows: Floats, importance: Importance = None) -> Bytes:
    """`importance` has one number a column. In blocks of 32 large numbers of a row count more on top of it."""
    function, size = _ENCODERS[dtype], BLOCKS[dtype]
    num_rows, num_columns = rows.shape
    packed = np.empty((num_rows, num_columns // size.num_values * size.num_bytes), np.uint8)
    step = max(1, AT_ONCE // num_columns)
    for start in range(0, num_rows, step):
        part = np.ascontiguousarray(rows[start : start + step], np.float32)
        weights = None
        if importance is not None:
            weights = np.broadcast_to(importance, part.shape)
            if size.num_values == 32:
                weights = weights * np.sqrt((part * part).mean(-1, keepdims=True) + part * part)
            weights = weights.reshape(-1, size.num_values)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            blocks = function(part.reshape(-1, size.num_values), weights)
        packed[start : start + step] = blocks.view(np.uint8).reshape(len(part), -1)
    return packed


def fits(dtype: str, num_columns: int) -> bool:
    return num_columns % BLOCKS[dtype].num_values == 0


def _blocks(dtype: str, count: int) -> npt.NDArray[Any]:
    return np.zeros(count, LAYOUTS[dtype])


def _reciprocal(values: Floats) -> Floats:
    return np.where(values != 0, np.float32(1) / np.where(values != 0, values, 1), np.float32(0)).astype(np.float32)


def _with_values(blocks: npt.NDArray[Any], values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Four bits of each value, the first half of a block low, the second high; and the fifth, where there is one, apart."""
    whole = values.astype(np.uint8)
    low, high = np.split(whole & 15, 2, axis=-1)
    blocks["low"] = low | (high << np.uint8(4))
    if bits == 5:
        blocks["fifth_bits"] = np.packbits((whole >> 4) & 1, axis=-1, bitorder="little")
    return blocks


# ---- a float as it is


def _bf16(rows: Floats, _: Importance) -> npt.NDArray[Any]:
    """Half goes to even; finite numbers only come here."""
    bits = rows.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


# ---- blocks of 32


def _farthest(x: Floats) -> Floats:
    """The number farthest from zero, with its sign; [n, 1]."""
    return np.take_along_axis(x, np.abs(x).argmax(-1)[:, None], -1)


def _q8_0(x: Floats, _: Importance) -> npt.NDArray[Any]:
    blocks = _blocks("Q8_0", len(x))
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    scaled = x * _reciprocal(scale)
    blocks["scale"] = scale[:, 0]
    blocks["values"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)
    return blocks


def _signed(dtype: str, bits: int) -> Callable[[Floats, Importance], npt.NDArray[Any]]:
    """Q4_0, Q5_0: the number farthest from zero is the least value."""
    middle = np.float32(1 << (bits - 1))

    def encode_blocks(x: Floats, importance: Importance) -> npt.NDArray[Any]:
        blocks = _blocks(dtype, len(x))
        if importance is None:
            scale = _farthest(x) / -middle
            values = np.floor(x * _reciprocal(scale) + (middle + np.float32(0.5))).clip(0, 2 * middle - 1)
        else:
            scale, values = _search_signed(x, importance, int(middle))
        blocks["scale"] = scale[:, 0]
        return _with_values(blocks, values, bits)

    return encode_blocks


def _from_least(dtype: str, bits: int) -> Callable[[Floats, Importance], npt.NDArray[Any]]:
    """Q4_1, Q5_1: a scale and the least number."""
    most = (1 << bits) - 1

    def encode_blocks(x: Floats, importance: Importance) -> npt.NDArray[Any]:
        blocks = _blocks(dtype, len(x))
        if importance is None:
            least = x.min(-1, keepdims=True)
            scale = (x.max(-1, keepdims=True) - least) / np.float32(most)
            values = np.floor((x - least) * _reciprocal(scale) + np.float32(0.5)).clip(0, most)
        else:
            scale, least, values = _search_range(x, importance, most, _IMPORTANT)
        blocks["scale"], blocks["least"] = scale[:, 0], least[:, 0]
        return _with_values(blocks, values, bits)

    return encode_blocks


# ---- searches


_PLAIN_4, _PLAIN_5, _IMPORTANT = (-1.0, 0.1, 20), (-0.5, 0.1, 15), (-0.9, 0.05, 36)
"""First offset from the number of steps, distance between two, how many."""


def _search_range(
    x: Floats, weights: Floats, most: int, tries: tuple[float, float, int]
) -> tuple[Floats, Floats, Floats]:
    """Scale, least number (not above zero) and values, of the least weighted square error; [n, 1], [n, 1], [n, 32].

    Each try fixes the values by one step size, counted from the best least number so far, and then fits scale and least
    number to them by least squares.
    """
    first, distance, count = tries
    low = np.minimum(x.min(-1, keepdims=True), 0).astype(np.float32)
    span = x.max(-1, keepdims=True) - low
    sum_w, sum_x = weights.sum(-1, keepdims=True), (weights * x).sum(-1, keepdims=True)
    weighted = weights * x
    top = x.max(-1, keepdims=True)
    scale, least = span / np.float32(most), low
    values = np.rint((x - low) * (np.float32(most) * _reciprocal(span))).clip(0, most)
    error = _square_error(x, weights, scale, least, values)
    for number in range(count + 1):
        step = np.float32(first + distance * number + most) * _reciprocal(top - least)
        tried = np.rint((x - least) * step).clip(0, most)
        w_l = weights * tried
        sum_l, sum_l2 = w_l.sum(-1, keepdims=True), (w_l * tried).sum(-1, keepdims=True)
        sum_xl = (weighted * tried).sum(-1, keepdims=True)
        d = sum_w * sum_l2 - sum_l * sum_l
        new_scale, new_least = (sum_w * sum_xl - sum_x * sum_l) / d, (sum_l2 * sum_x - sum_l * sum_xl) / d
        is_above = new_least > 0
        new_scale = np.where(is_above, sum_xl / sum_l2, new_scale)
        new_least = np.where(is_above, np.float32(0), new_least)
        new_error = _square_error(x, weights, new_scale, new_least, tried)
        is_better = (d > 0) & (new_error < error)
        error = np.where(is_better, new_error, error)
        scale, least = np.where(is_better, new_scale, scale), np.where(is_better, new_least, least)
        values = np.where(is_better, tried, values)
    is_flat = span == 0
    return np.where(is_flat, 0, scale), np.where(is_flat, low, least), np.where(is_flat, 0, values)


def _square_error(x: Floats, weights: Floats, scale: Floats, least: Floats, values: Floats) -> Floats:
    off = scale * values + least - x
    error: Floats = (weights * off * off).sum(-1, keepdims=True)
    return error


def _search_signed(x: Floats, weights: Floats, middle: int) -> tuple[Floats, Floats]:
    """Scale and values 0 .. 2 * middle - 1 that stand for value - middle; [n, 1], [n, m]."""
    farthest = _farthest(x)
    is_zero = np.abs(farthest) < TINY
    inverse = _reciprocal(np.where(is_zero, 0, farthest))
    scale = best = values = np.zeros_like(farthest)
    weighted = weights * x
    for number in (0, *range(-9, 0), *range(1, 10)):
        tried = np.rint(x * (-(np.float32(middle) + np.float32(0.1) * number) * inverse)).clip(-middle, middle - 1)
        sum_lx, sum_l2 = (weighted * tried).sum(-1, keepdims=True), (weights * tried * tried).sum(-1, keepdims=True)
        is_better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2) if number else sum_l2 > 0
        new_scale = np.where(sum_l2 > 0, sum_lx / sum_l2, 0)
        scale = np.where(is_better, new_scale, scale)
        best = np.where(is_better, new_scale * sum_lx, best)
        values = np.where(is_better, tried, values)
    return np.where(is_zero, 0, scale).astype(np.float32), np.where(is_zero, middle, values + middle)


def _search_positive(x: Floats, weights: Floats, most: int) -> tuple[Floats, Floats]:
    """The same for numbers that are not negative: eight scales of a block under one; [n, 1], [n, 8]."""
    top = x.max(-1, keepdims=True)
    is_zero = top < TINY
    inverse = _reciprocal(np.where(is_zero, 0, top))
    step = np.float32(most) * inverse
    least: Floats | None = None
    for number in (0, *range(-4, 0), *range(1, 5)):
        tried = (np.float32(0.1) * number + np.float32(most)) * inverse
        off = x - _reciprocal(tried) * np.minimum(np.rint(tried * x), most)
        error = (weights * off * off).sum(-1, keepdims=True)
        is_better = np.full_like(is_zero, True) if least is None else error < least
        least = error if least is None else np.where(is_better, error, least)
        step = np.where(is_better, tried, step)
    values = np.minimum(np.rint(step * x), most)
    sum_lx, sum_l2 = (weights * x * values).sum(-1), (weights * values * values).sum(-1)
    for _ in range(5):
        for place in range(x.shape[-1]):
            w, one, value = weights[:, place], x[:, place], values[:, place]
            lx, l2 = sum_lx - w * one * value, sum_l2 - w * value * value
            new = np.minimum(np.rint(one * l2 / lx), most)
            new_lx, new_l2 = lx + w * one * new, l2 + w * new * new
            is_better = (lx > 0) & (l2 > 0) & (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2)
            values[:, place] = np.where(is_better, new, value)
            sum_lx, sum_l2 = np.where(is_better, new_lx, sum_lx), np.where(is_better, new_l2, sum_l2)
    scale = np.where((sum_l2 > 0) & ~is_zero[:, 0], sum_lx / sum_l2, 0)
    return scale[:, None].astype(np.float32), np.where(is_zero, 0, values)


# ---- blocks of 256


def _with_leasts(dtype: str, bits: int, plain: tuple[float, float, int]) -> Callable[..., npt.NDArray[Any]]:
    """Q4_K, Q5_K: eight groups of 32, each with a 6-bit scale and a 6-bit minimum."""
    most = (1 << bits) - 1

    def encode_blocks(x: Floats, importance: Importance) -> npt.NDArray[Any]:
        blocks, groups = _blocks(dtype, len(x)), x.reshape(-1, 32)
        if importance is None:
            weights = np.sqrt((groups * groups).mean(-1, keepdims=True)) + np.abs(groups)
            scales, leasts, _ = _search_range(groups, weights, most, plain)
            scales, leasts = scales.reshape(-1, 8), -leasts.reshape(-1, 8)
            tops = scales.max(-1, keepdims=True), leasts.max(-1, keepdims=True)
            small = [
                np.minimum(np.rint(np.float32(63) * _reciprocal(top) * each), 63)
                for top, each in zip(tops, (scales, leasts))
            ]
            wide = [top / np.float32(63) for top in tops]
        else:
            spread = 2 * (x * x).mean(-1, keepdims=True)
            weights = (importance * np.sqrt(spread + x * x)).reshape(-1, 32)
            scales, leasts, _ = _search_range(groups, weights, most, _IMPORTANT)
            by_block = weights.sum(-1).reshape(-1, 8)
            found = [_search_positive(each.reshape(-1, 8), by_block, 63) for each in (scales, -leasts)]
            wide, small = [each[0] for each in found], [each[1] for each in found]
        blocks["scale"], blocks["least"] = (each[:, 0] for each in wide)
        blocks["scales"] = _six_bits(*small)
        scale = (blocks["scale"].astype(np.float32)[:, None] * small[0]).reshape(-1, 1)
        least = (blocks["least"].astype(np.float32)[:, None] * small[1]).reshape(-1, 1)
        values = np.rint((groups + least) * _reciprocal(scale)).clip(0, most).astype(np.uint8).reshape(-1, 4, 2, 32)
        blocks["low"] = (values[:, :, 0] & 15) | ((values[:, :, 1] & 15) << 4)
        if bits == 5:
            high = (values.reshape(-1, 8, 32) >> 4) << np.arange(8, dtype=np.uint8)[:, None]
            blocks["high"] = np.bitwise_or.reduce(high, axis=1)
        return blocks

    return encode_blocks


def _six_bits(scales: Floats, leasts: Floats) -> Bytes:
    """Twelve bytes of eight scales and eight minimums, as `quants` reads them."""
    s, m = scales.astype(np.uint8), leasts.astype(np.uint8)
    first = s[:, :4] | ((s[:, 4:] >> 4) << 6)
    second = m[:, :4] | ((m[:, 4:] >> 4) << 6)
    return np.concatenate((first, second, (s[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)), axis=-1)


def _q6_k(x: Floats, importance: Importance) -> npt.NDArray[Any]:
    """Sixteen groups of 16, each with an 8-bit scale."""
    blocks, groups = _blocks("Q6_K", len(x)), x.reshape(-1, 16)
    weights = groups * groups if importance is None else np.ascontiguousarray(importance).reshape(-1, 16)
    scales, _ = _search_signed(groups, weights, 32)
    scales = scales.reshape(-1, 16)
    inverse = np.float32(-128) * _reciprocal(_farthest(scales))
    blocks["scale"] = _reciprocal(inverse)[:, 0]
    blocks["scales"] = np.minimum(np.rint(inverse * scales), 127)
    scale = (blocks["scale"].astype(np.float32)[:, None] * blocks["scales"]).reshape(-1, 1)
    values = (np.rint(groups * _reciprocal(scale)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (values & 15).reshape(-1, 2, 2, 64)
    blocks["low"] = low[:, :, 0] | (low[:, :, 1] << 4)
    high = (values >> 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    blocks["high"] = np.bitwise_or.reduce(high, axis=2)
    return blocks


_ENCODERS: dict[str, Callable[[Floats, Importance], npt.NDArray[Any]]] = {
    "F32": lambda rows, _: rows,
    "F16": lambda rows, _: rows.astype(np.float16),
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _signed("Q4_0", 4),
    "Q5_0": _signed("Q5_0", 5),
    "Q4_1": _from_least("Q4_1", 4),
    "Q5_1": _from_least("Q5_1", 5),
    "Q4_K": _with_leasts("Q4_K", 4, _PLAIN_4),
    "Q5_K": _with_leasts("Q5_K", 5, _PLAIN_5),
    "Q6_K": _q6_k,
}
