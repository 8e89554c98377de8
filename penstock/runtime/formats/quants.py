"""Number formats: how values lie in bytes, and the float32 each stands for.

Every format is a sequence of equal blocks along a row. The structured dtypes below are the layouts, byte for byte; the
functions beside them are the definition of each value. Knows no file and no model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelFileError
from penstock.runtime.formats.checkpoint import RawTensor, quoted
from penstock.runtime.formats.lattices import LATTICES
from penstock.runtime.formats.mapping import Bytes

Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]
"""Blocks of one layout: a structured array [num_blocks]."""


class BlockSize(NamedTuple):
    num_values: int
    num_bytes: int


def dequantize(raw: RawTensor) -> Floats:
    """The tensor's values, in its shape."""
    return unpack(raw.dtype, raw.rows).reshape(raw.shape)


def dequantize_rows(raw: RawTensor, rows: slice) -> Floats:
    """The values of some rows, [rows, row_size]; rows count over all axes but the last."""
    return unpack(raw.dtype, raw.rows[rows])


def unpack(dtype: str, rows: Bytes) -> Floats:
    """Values of packed rows [n, row_bytes] as a new array [n, row_size]. Needs little memory beside its result."""
    if dtype not in _UNPACKERS:
        known = ", ".join(_UNPACKERS)
        raise ModelFileError(f"numbers of type {quoted(dtype)} cannot be turned into float32; these can: {known}")
    layout, function = _UNPACKERS[dtype]
    num_rows, row_bytes = rows.shape
    num_values, num_bytes = BLOCKS[dtype]
    if row_bytes % num_bytes:
        raise ModelFileError(f"a row of {row_bytes} bytes is not made of {dtype} blocks of {num_bytes} bytes")
    values = np.empty((num_rows, row_bytes // num_bytes * num_values), dtype=np.float32)
    # A group's intermediate arrays stay in the processor's cache, which is both small and several times faster.
    group = max(1, _GROUP_VALUES // max(1, values.shape[1]))
    for start in range(0, num_rows, group):
        part = values[start : start + group]
        blocks = np.ascontiguousarray(rows[start : start + group]).reshape(-1).view(layout)
        with np.errstate(over="ignore"):  # a scale beyond float32 gives infinity, which is for the loader to refuse
            part[...] = function(blocks).reshape(part.shape)
    return values


_GROUP_VALUES = 1 << 16


def _f32(values: Blocks) -> Floats:
    return values.astype(np.float32)


def _bf16(values: Blocks) -> Floats:
    return (values.astype(np.uint32) << 16).view(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low halves of all bytes of the last axis, then the high halves."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _bit_planes(packed: Bytes, bits: int) -> Bytes:
    """[..., bytes] -> [..., 8 / bits, bytes]: the lowest `bits` of every byte, then the next ones, ..."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    planes: Bytes = (packed[..., None, :] >> shifts[:, None]) & np.uint8((1 << bits) - 1)
    return planes


def _bytes(blocks: Blocks, field: str) -> Bytes:
    values: Bytes = blocks[field]
    return values


def _half(blocks: Blocks, field: str) -> Floats:
    """A half-precision number per block, as [num_blocks, 1]."""
    values: Floats = blocks[field].astype(np.float32)
    return values[:, None]


# ---- blocks of 32 values under one scale; the low halves of the bytes hold the first 16 values

_Q4_0 = np.dtype([("scale", "<f2"), ("low", "u1", 16)])
_Q4_1 = np.dtype([("scale", "<f2"), ("least", "<f2"), ("low", "u1", 16)])
_Q5_0 = np.dtype([("scale", "<f2"), ("fifth_bits", "u1", 4), ("low", "u1", 16)])
_Q5_1 = np.dtype([("scale", "<f2"), ("least", "<f2"), ("fifth_bits", "u1", 4), ("low", "u1", 16)])
_Q8_0 = np.dtype([("scale", "<f2"), ("values", "i1", 32)])
_IQ4_NL = _Q4_0
_MXFP4 = np.dtype([("exponent", "u1"), ("low", "u1", 16)])

_IQ4_LEVELS: Floats = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
# Twice the levels 0, 0.5, 1, 1.5, 2, 3, 4, 6 and half the scales 2 ** (exponent - 127): the largest scale is then finite.
_FP4_LEVELS: Floats = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
_FP4_SCALES: Floats = np.ldexp(np.float32(1), np.arange(-128, 128, dtype=np.int32))


def _five_bits(blocks: Blocks) -> Bytes:
    fifth: Bytes = np.unpackbits(_bytes(blocks, "fifth_bits"), axis=-1, bitorder="little") << np.uint8(4)
    return _nibbles(_bytes(blocks, "low")) | fifth


def _q4_0(blocks: Blocks) -> Floats:
    return _half(blocks, "scale") * (_nibbles(_bytes(blocks, "low")).view(np.int8) - np.int8(8))


def _q4_1(blocks: Blocks) -> Floats:
    return _half(blocks, "scale") * _nibbles(_bytes(blocks, "low")) + _half(blocks, "least")


def _q5_0(blocks: Blocks) -> Floats:
    return _half(blocks, "scale") * (_five_bits(blocks).view(np.int8) - np.int8(16))


def _q5_1(blocks: Blocks) -> Floats:
    return _half(blocks, "scale") * _five_bits(blocks) + _half(blocks, "least")


def _q8_0(blocks: Blocks) -> Floats:
    values: npt.NDArray[np.int8] = blocks["values"]
    return _half(blocks, "scale") * values


def _iq4_nl(blocks: Blocks) -> Floats:
    return _half(blocks, "scale") * _IQ4_LEVELS[_nibbles(_bytes(blocks, "low"))]


def _mxfp4(blocks: Blocks) -> Floats:
    return _FP4_SCALES[_bytes(blocks, "exponent")][:, None] * _FP4_LEVELS[_nibbles(_bytes(blocks, "low"))]


# ---- blocks of 256 values in sub-blocks of 16 or 32, each with its own small scale

_Q2_K = np.dtype([("scales", "u1", 16), ("low", "u1", (2, 32)), ("scale", "<f2"), ("least", "<f2")])
_Q3_K = np.dtype([("high", "u1", 32), ("low", "u1", (2, 32)), ("scales", "u1", 12), ("scale", "<f2")])
_Q4_K = np.dtype([("scale", "<f2"), ("least", "<f2"), ("scales", "u1", 12), ("low", "u1", (4, 32))])
_Q5_K = np.dtype([("scale", "<f2"), ("least", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("low", "u1", (4, 32))])
_Q6_K = np.dtype([("low", "u1", (2, 64)), ("high", "u1", (2, 32)), ("scales", "i1", 16), ("scale", "<f2")])
_IQ4_XS = np.dtype([("scale", "<f2"), ("scales_high", "<u2"), ("scales_low", "u1", 4), ("low", "u1", (8, 16))])


def _q2_k(blocks: Blocks) -> Floats:
    scales: Floats = _half(blocks, "scale") * (_bytes(blocks, "scales") & 0x0F)
    leasts: Floats = _half(blocks, "least") * (_bytes(blocks, "scales") >> 4)
    values = _bit_planes(_bytes(blocks, "low"), 2).reshape(-1, 16, 16)
    return scales[:, :, None] * values - leasts[:, :, None]


def _q3_k(blocks: Blocks) -> Floats:
    low_scales = _nibbles(_bytes(blocks, "scales")[:, :8])
    high_scales = _bit_planes(_bytes(blocks, "scales")[:, 8:], 2).reshape(-1, 16)
    scales = (low_scales | (high_scales << 4)).view(np.int8) - np.int8(32)
    low = _bit_planes(_bytes(blocks, "low"), 2).reshape(-1, 256)
    high = _bit_planes(_bytes(blocks, "high"), 1).reshape(-1, 256)
    values = ((low | (high << 2)).view(np.int8) - np.int8(4)).reshape(-1, 16, 16)
    block_scales: Floats = _half(blocks, "scale") * scales
    return block_scales[:, :, None] * values


def _scales_and_leasts(blocks: Blocks) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K.

    bytes 0-3   scales 0-3, and above them 2 bits for scales 4-7
    bytes 4-7   minima 0-3, and above them 2 bits for minima 4-7
    bytes 8-11  low 4 bits of scales 4-7, and above them those of minima 4-7
    """
    first, second, last = np.split(_bytes(blocks, "scales"), 3, axis=-1)
    scales = np.concatenate((first & 0x3F, (last & 0x0F) | (first >> 6 << 4)), axis=-1)
    leasts = np.concatenate((second & 0x3F, (last >> 4) | (second >> 6 << 4)), axis=-1)
    return (_half(blocks, "scale") * scales)[:, :, None], (_half(blocks, "least") * leasts)[:, :, None]


def _q4_k(blocks: Blocks) -> Floats:
    scales, leasts = _scales_and_leasts(blocks)
    return scales * _nibbles(_bytes(blocks, "low")).reshape(-1, 8, 32) - leasts


def _q5_k(blocks: Blocks) -> Floats:
    scales, leasts = _scales_and_leasts(blocks)
    values = _nibbles(_bytes(blocks, "low")).reshape(-1, 8, 32) | (_bit_planes(_bytes(blocks, "high"), 1) << 4)
    return scales * values - leasts


def _q6_k(blocks: Blocks) -> Floats:
    low = _nibbles(_bytes(blocks, "low")).reshape(-1, 256)
    high = _bit_planes(_bytes(blocks, "high"), 2).reshape(-1, 256)
    values = ((low | (high << 4)).view(np.int8) - np.int8(32)).reshape(-1, 16, 16)
    scales: npt.NDArray[np.int8] = blocks["scales"]
    return (_half(blocks, "scale") * scales)[:, :, None] * values


def _iq4_xs(blocks: Blocks) -> Floats:
    low_scales = np.stack((_bytes(blocks, "scales_low") & 0x0F, _bytes(blocks, "scales_low") >> 4), axis=-1).reshape(
        -1, 8
    )
    high_scales = (blocks["scales_high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = (low_scales | (high_scales << 4).astype(np.uint8)).view(np.int8) - np.int8(32)
    return (_half(blocks, "scale") * scales)[:, :, None] * _IQ4_LEVELS[_nibbles(_bytes(blocks, "low"))]


_UNPACKERS: dict[str, tuple[np.dtype[Any], Callable[[Blocks], Floats]]] = {
    "F32": (np.dtype("<f4"), _f32),
    "F16": (np.dtype("<f2"), _f32),
    "BF16": (np.dtype("<u2"), _bf16),
    "Q4_0": (_Q4_0, _q4_0),
    "Q4_1": (_Q4_1, _q4_1),
    "Q5_0": (_Q5_0, _q5_0),
    "Q5_1": (_Q5_1, _q5_1),
    "Q8_0": (_Q8_0, _q8_0),
    "Q2_K": (_Q2_K, _q2_k),
    "Q3_K": (_Q3_K, _q3_k),
    "Q4_K": (_Q4_K, _q4_k),
    "Q5_K": (_Q5_K, _q5_k),
    "Q6_K": (_Q6_K, _q6_k),
    "IQ4_NL": (_IQ4_NL, _iq4_nl),
    "IQ4_XS": (_IQ4_XS, _iq4_xs),
    "MXFP4": (_MXFP4, _mxfp4),
    **LATTICES,
}

LAYOUTS: dict[str, np.dtype[Any]] = {name: layout for name, (layout, _) in _UNPACKERS.items()}
"""How a block of each format lies in bytes, for who writes them."""

_QUANTIZED_BLOCK_VALUES = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), 32),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", *LATTICES), 256),
}

BLOCKS: dict[str, BlockSize] = {
    **{name: BlockSize(1, 1) for name in ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0")},
    **{name: BlockSize(1, 2) for name in ("U16", "I16", "F16", "BF16")},
    **{name: BlockSize(1, 4) for name in ("U32", "I32", "F32")},
    **{name: BlockSize(1, 8) for name in ("U64", "I64", "F64", "C64")},
    "F4": BlockSize(2, 1),
    "F6_E2M3": BlockSize(4, 3),
    "F6_E3M2": BlockSize(4, 3),
    **{name: BlockSize(count, _UNPACKERS[name][0].itemsize) for name, count in _QUANTIZED_BLOCK_VALUES.items()},
}
"""Values and bytes of a block of every number format a tensor may have."""
