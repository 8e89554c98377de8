"""A matrix that adapters add thin ones to."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.grouped.lora import LoraBank, Product, add_lora, add_lora_gated
from penstock.runtime.ops.quantized.fp8 import Fp8


class LoraLinear(nn.Module):
    """`sizes` are the outputs of each of the modules that were joined into the matrix."""

    def __init__(self, linear: nn.Module, sizes: Sequence[int], step: AdapterStep) -> None:
        super().__init__()
        self.linear = linear
        self.sizes = tuple(sizes)
        self.step = step
        self.bank: LoraBank | None = None
        """Whose memory adapters are laid into."""
        self.squares: Tensor | None = None
        """Of the lengths of the matrix's own rows, once a DoRA has asked for them."""

    @property
    def bias(self) -> Tensor | None:
        return self.linear.bias  # type: ignore[return-value]

    def forward(self, x: Tensor | Fp8) -> Tensor:
        return self._adapted(partial(self.linear, x), x)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        tokens = self.step.tokens
        if tokens is None or self.bank is None:
            return self.linear.gated(x, activation)  # type: ignore[operator, no-any-return]
        product = partial(self.linear, x)
        return add_lora_gated(_floats(x), product, self.bias, *tokens, self.bank, self.sizes, activation)

    def scores(self, hidden: Tensor) -> Tensor:
        return self._adapted(lambda: self.linear.scores(hidden), hidden)  # type: ignore[operator]

    def _adapted(self, product: Product, x: Tensor | Fp8) -> Tensor:
        tokens = self.step.tokens
        if tokens is None or self.bank is None:
            return product()
        return add_lora(_floats(x), product, self.bias, *tokens, self.bank, self.sizes)


def _floats(x: Tensor | Fp8) -> Tensor:
    return (x.values.float() * x.scales[:, None]).bfloat16() if isinstance(x, Fp8) else x
