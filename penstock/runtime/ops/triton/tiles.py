"""Gated products of as many rows as one tile of the matrix units holds.

The library would store both products, and the gate would read them again in a launch of its own. Tiles come by the chip's copy
engine. With more rows than one tile, or clearly fewer, the library wins.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS
from penstock.runtime.ops.linear import gated_linear
from penstock.runtime.ops.triton.activation import KINDS, gated
from penstock.runtime.ops.triton.host.chain import OLDEST, await_others, chained
from penstock.runtime.ops.triton.host.launch import entry
from penstock.runtime.ops.triton.small_batch import room_for_loads

MIN_ROWS, MAX_ROWS = 65, 128
"""On an H200 a step of 64 sequences at the 8B shape takes 5.21 ms with the library and 5.49 with this, of 80 5.46 and 5.43,
of 96 5.63 and 5.61, of 112 5.89 and 5.80, of 128 6.04 and 5.85."""
MIN_OUT = 96 * 128
"""Outputs below which too few programs are under way (at the 0.6B shape 24: 2.01 ms became 2.14)."""
LINE_BYTES = 16
"""The copy engine takes rows that begin at a multiple of this."""
ROWS, BLOCK, WARPS, MAX_STAGES = 128, 64, 8, 4
"""Rows of the matrix a program reads twice over, columns at a time, warps, loads under way."""


@entry
@triton.jit(do_not_specialize=["num_rows"])
def _gated_tile(
    x, weight, bias, out, num_rows, num_out,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
    KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    """All rows of x with ROWS rows of the matrix and those num_out further down. Past an edge the copy engine reads zeros."""
    begin = tl.program_id(0) * ROWS
    await_others(CHAINS)
    gates = tl.zeros([ROWS, TOKENS], tl.float32)
    ups = tl.zeros([ROWS, TOKENS], tl.float32)
    for column in range(0, SIZE, BLOCK):
        numbers = x.load([0, column]).T
        gates = tl.dot(weight.load([begin, column]), numbers, gates, input_precision="ieee")
        ups = tl.dot(weight.load([num_out + begin, column]), numbers, ups, input_precision="ieee")
    rows = begin + tl.arange(0, ROWS)
    tokens = tl.arange(0, TOKENS)
    if BIAS:
        bounded = tl.minimum(rows, num_out - 1)
        gates += tl.load(bias + bounded).to(tl.float32)[:, None]
        ups += tl.load(bias + num_out + bounded).to(tl.float32)[:, None]
    value = gated(gates, ups, out.dtype.element_ty, KIND, CLAMP, SHARPNESS)
    is_inside = (tokens < num_rows)[None, :] & (rows < num_out)[:, None]
    tl.store(out + tokens[None, :] * num_out + rows[:, None], value.to(out.dtype.element_ty), mask=is_inside)


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> bool:
    if x.ndim != 2 or not MIN_ROWS <= x.shape[0] <= MAX_ROWS or x.element_size() != 2 or len(weight) < 2 * MIN_OUT:
        return False
    is_lined_up = not any(part.data_ptr() % LINE_BYTES for part in (x, weight)) and not 2 * x.shape[1] % LINE_BYTES
    return is_lined_up and x.is_contiguous() and weight.is_contiguous() and _has_copy_engine(x.device)


def _has_copy_engine(device: torch.device) -> bool:
    """Without a GPU kernels are interpreted as for one that has it."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= OLDEST


@gated_linear.kernel("cuda", fits=_fits)
def gated_linear_tile(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    num_rows, size = x.shape
    num_out = weight.shape[0] // 2
    out = torch.empty((num_rows, num_out), dtype=x.dtype, device=x.device)
    loaded_bytes = (2 * ROWS + MAX_ROWS) * BLOCK * x.element_size()
    _gated_tile[(triton.cdiv(num_out, ROWS),)](
        TensorDescriptor.from_tensor(x, [MAX_ROWS, BLOCK]), TensorDescriptor.from_tensor(weight, [ROWS, BLOCK]),
        x if bias is None else bias, out, num_rows, num_out,
        SIZE=size, TOKENS=MAX_ROWS, ROWS=ROWS, BLOCK=BLOCK, BIAS=bias is not None,
        KIND=KINDS[activation], CLAMP=CLAMP, SHARPNESS=SHARPNESS, **chained(), num_warps=WARPS,
        num_stages=max(min(MAX_STAGES, room_for_loads(x.device) // loaded_bytes), 1),
    )  # fmt: skip
    return out
