"""What every kernel over the paged cache shares: finding keys, bending scores, reading 8-bit numbers.

Scores are kept in base 2 (scale carries log2 e).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.models.spec import GQA
from penstock.ops.layout import AnyCache, ScaledCache

LOG2_E = 1.4426950408889634
FLOATS, WHOLES = 1, 2
"""Kinds of 8-bit numbers in a cache; 0 is none."""

_FLOATS_TO_HALVES = """{
    .reg .b32 sorted; .reg .b16 low, high;
    prmt.b32 sorted, $2, 0, 0x3120;
    mov.b32 {low, high}, sorted;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}"""
# A byte plus 128 in the low bits of 1024.0 is 1152 more than the number.
_WHOLES_TO_HALVES = """{
    .reg .b32 raised, low, high, off, thousand;
    mov.b32 thousand, 0x64646464;
    mov.b32 off, 0x64806480;
    xor.b32 raised, $2, 0x80808080;
    prmt.b32 low, raised, thousand, 0x4240;
    prmt.b32 high, raised, thousand, 0x4341;
    sub.f16x2 $0, low, off;
    sub.f16x2 $1, high, off;
}"""
FLOATS_TO_HALVES = tl.constexpr(_FLOATS_TO_HALVES)
WHOLES_TO_HALVES = tl.constexpr(_WHOLES_TO_HALVES)


@triton.jit
def capped(scores, CAP: tl.constexpr, LOG2_E: tl.constexpr):
    """Scores in base 2, bent below the cap where there is one."""
    if CAP > 0:
        bent = scores / (CAP * LOG2_E)
        scores = (2.0 * tl.sigmoid(2.0 * bent) - 1.0) * (CAP * LOG2_E)
    return scores


@triton.jit
def slots_of(tables, table_start, positions, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(tables + table_start + positions // BLOCK_SIZE, mask=inside, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def halves(pairs, BYTES: tl.constexpr, NATIVE: tl.constexpr):
    """The numbers in the low and in the high bytes of 16-bit words, in half precision and exactly.

    Read as words, 8-bit numbers reach the matrix units by the same fast ways through shared memory as 16-bit ones.
    """
    if NATIVE:
        if BYTES == 1:
            low, high = tl.inline_asm_elementwise(
                FLOATS_TO_HALVES, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
        else:
            low, high = tl.inline_asm_elementwise(
                WHOLES_TO_HALVES, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
    else:
        first, second = (pairs & 0xFF).to(tl.int8), (pairs >> 8).to(tl.int8)
        if BYTES == 1:
            low = first.to(tl.float8e4nv, bitcast=True).to(tl.float16)
            high = second.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        else:
            low, high = first.to(tl.float16), second.to(tl.float16)
    return low, high


def kind_of_bytes(cache: AnyCache) -> int:
    if cache.keys.element_size() > 1:
        return 0
    return FLOATS if cache.keys.dtype == torch.float8_e4m3fn else WHOLES


def shape(cache: AnyCache, spec: GQA, sinks: Tensor | None) -> dict[str, int | float | bool]:
    """Arguments every kernel over the cache takes."""
    return {
        "HEADS": spec.num_heads,
        "KV_HEADS": spec.num_kv_heads,
        "DIM": spec.head_dim,
        "PAD": triton.next_power_of_2(spec.head_dim),
        "BLOCK_SIZE": cache.block_size,
        "LOG2_E": LOG2_E,
        "SINKS": sinks is not None,
        "SCALES": isinstance(cache, ScaledCache),
        "WINDOW": spec.window or 0,
        "CAP": spec.logit_softcap or 0.0,
    }


def scales_of(cache: AnyCache) -> tuple[Tensor, Tensor]:
    """A cache without scales hands over its numbers, which are then not read as scales."""
    return (cache.key_scales, cache.value_scales) if isinstance(cache, ScaledCache) else (cache.keys, cache.values)
