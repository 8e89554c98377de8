"""The gate of a pair in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import CLAMP, SHARPNESS, gate
from penstock.runtime.ops.triton.host.chain import await_others, chained
from penstock.runtime.ops.triton.host.launch import entry

KINDS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "swiglu_clamped": 3, "relu2": 4}


@triton.jit
def activated(gates, ups, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr):
    """float32 gate of float32 halves."""
    if KIND == 0:
        return gates * tl.sigmoid(gates) * ups
    elif KIND == 1:
        return 0.5 * gates * (1.0 + tl.erf(gates * 0.7071067811865476)) * ups
    elif KIND == 2:
        inner = 0.7978845608028654 * (gates + 0.044715 * gates * gates * gates)
        return gates * tl.sigmoid(2.0 * inner) * ups
    elif KIND == 4:
        high = tl.maximum(gates, 0.0)
        return high * high * ups
    else:
        low = tl.minimum(gates, CLAMP)
        return low * tl.sigmoid(low * SHARPNESS) * (tl.minimum(tl.maximum(ups, -CLAMP), CLAMP) + 1.0)


@triton.jit
def gated(gates, ups, kind: tl.constexpr, KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr):
    """Of two float32 products, rounded as they would be if they were stored."""
    return activated(gates.to(kind).to(tl.float32), ups.to(kind).to(tl.float32), KIND, CLAMP, SHARPNESS)


@entry
@triton.jit
def _gate(
    pairs, out, width,
    KIND: tl.constexpr, CLAMP: tl.constexpr, SHARPNESS: tl.constexpr, BLOCK: tl.constexpr, CHAINS: tl.constexpr,
):  # fmt: skip
    await_others(CHAINS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gates = tl.load(pairs + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(pairs + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    value = activated(gates, ups, KIND, CLAMP, SHARPNESS)
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


def _fits(gate_up: Tensor, activation: Activation) -> bool:
    return gate_up.is_contiguous() and gate_up.numel() > 0


@gate.kernel("cuda", fits=_fits)
def gate_rows(gate_up: Tensor, activation: Activation) -> Tensor:
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    block = min(triton.next_power_of_2(width), 2048)
    grid = (gate_up.numel() // (2 * width), triton.cdiv(width, block))
    _gate[grid](gate_up, out, width, KINDS[activation], CLAMP, SHARPNESS, BLOCK=block, **chained(), num_warps=4)
    return out
