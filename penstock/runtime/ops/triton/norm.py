"""RMS norms: one program a row, the row read once."""

import triton
import triton.language as tl
from torch import Tensor, empty_like

from penstock.runtime.ops.norm import add_rms_norm, rms_norm
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry

MAX_SIZE = 16384


@entry
@triton.jit
def _norm_rows(
    x, stream, weight, out, eps, size: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr, CHAINS: tl.constexpr
):
    await_others(CHAINS)
    row = tl.program_id(0).to(tl.int64) * size
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    wide = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        wide += tl.load(stream + row + columns, mask=inside, other=0.0).to(tl.float32)
        kept = wide.to(stream.dtype.element_ty)
        tl.store(stream + row + columns, kept, mask=inside)
        wide = kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    scaled = wide * scale * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + row + columns, scaled.to(out.dtype.element_ty), mask=inside)


def _launch(x: Tensor, stream: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    size = x.shape[-1]
    out = empty_like(x)
    block = triton.next_power_of_2(size)
    _norm_rows[(x.numel() // size,)](
        x, stream, weight, out, eps, size, ADDS=stream is not None, BLOCK=block,
        **chained(), num_warps=min(max(block // 512, 1), 8),
    )  # fmt: skip
    return out


def _fits(x: Tensor, weight: Tensor, eps: float) -> bool:
    return x.is_contiguous() and x.numel() > 0 and x.shape[-1] <= MAX_SIZE


def _add_fits(x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> bool:
    return _fits(x, weight, eps) and stream.is_contiguous()


@rms_norm.kernel("cuda", fits=_fits)
def rms_norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, None, weight, eps)


@add_rms_norm.kernel("cuda", fits=_add_fits)
def add_rms_norm_rows(x: Tensor, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, stream, weight, eps)
