"""Turns a loaded model's matrices into 8-bit floats, from outside: layers do not know it was ever otherwise.

Left as they are: the embedding and the output matrix, whose errors would go straight into the scores; the routers of
mixtures, which decide rather than compute; the experts, which have kernels of their own; and what makes keys and values of
latents, which multiplies a head at a time.
"""

from torch import nn

from penstock.runtime.layers.attention import Attention
from penstock.runtime.layers.layer import StreamLayer
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated, Ungated
from penstock.runtime.layers.norm import RMSNorm
from penstock.runtime.layers.quantized.fp8 import Fp8Gated, Fp8Linear, Fp8Norm

KEPT = frozenset({"output", "router", "kv_b"})


def quantize_fp8(model: nn.Module) -> None:
    """Of a model or a layer of it, in place, one matrix at a time: it needs the memory of one beside what there is."""
    for name, child in list(model.named_children()):
        if isinstance(child, Gated):
            setattr(model, name, Fp8Gated(child))
        elif not isinstance(child, Linear):
            quantize_fp8(child)
        elif name not in KEPT:
            setattr(model, name, Fp8Linear(child))
    if isinstance(model, StreamLayer):
        _quantize_norms(model)


def _quantize_norms(layer: StreamLayer) -> None:
    """Norms whose only reader is a matrix of 8-bit floats."""
    if isinstance(layer.attention_norm, RMSNorm) and isinstance(layer.attention, Attention):
        layer.register_module("attention_norm", Fp8Norm(layer.attention_norm))
    if isinstance(layer.mlp_norm, RMSNorm) and isinstance(layer.mlp, Fp8Gated | Ungated):
        layer.register_module("mlp_norm", Fp8Norm(layer.mlp_norm))
