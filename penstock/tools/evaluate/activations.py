"""Products as engines with 8-bit activations compute them: what a matrix is multiplied with is rounded first.

Done from outside, by module swap, to a model in float32: our own kernels keep more bits.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.linear import Linear
from penstock.runtime.models.spec import Activation

Rounding = Literal["int8", "q8"]
"""By token (W8A8 checkpoints) or in blocks of 32 (llama.cpp's products with quantized matrices)."""
MOST = 127.0
BLOCK = 32


def rounded(x: Tensor, rounding: Rounding) -> Tensor:
    blocks = x.float().reshape(*x.shape[:-1], -1, x.shape[-1] if rounding == "int8" else BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True) / MOST
    values = (blocks / torch.where(scales > 0, scales, 1.0)).round().clamp(-MOST, MOST)
    scales = scales.half().float() if rounding == "q8" else scales  # as llama.cpp keeps them
    return (values * scales).view(x.shape).to(x.dtype)


class RoundedLinear(nn.Module):
    def __init__(self, linear: Linear, rounding: Rounding) -> None:
        super().__init__()
        self.linear = linear
        self.rounding: Rounding = rounding

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(rounded(x, self.rounding))  # type: ignore[no-any-return]

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        return self.linear.gated(rounded(x, self.rounding), activation)

    def scores(self, hidden: Tensor) -> Tensor:
        return self.linear.scores(rounded(hidden, self.rounding))


def round_inputs(model: Decoder, rounding: Rounding) -> int:
    """How many matrices were taken hold of: all in layers; llama.cpp rounds before the output matrix too."""
    found = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, Linear) and (rounding == "q8" or path.startswith("layers."))
    ]
    for path, module in found:
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, RoundedLinear(module, rounding))
    if rounding == "q8" and model.spec.tied_embedding:
        score = model.scores
        model.scores = lambda hidden: score(rounded(hidden, rounding))  # type: ignore[method-assign]
    return len(found)
