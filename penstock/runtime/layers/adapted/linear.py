"""A matrix that adapters add thin ones to."""

from collections.abc import Sequence

from torch import Tensor, nn

from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.fp8 import Fp8
from penstock.runtime.ops.lora import add_lora


class LoraLinear(nn.Module):
    """`sizes` are the outputs of each of the modules that were joined into the matrix."""

    def __init__(self, linear: nn.Module, sizes: Sequence[int], step: AdapterStep) -> None:
        super().__init__()
        self.linear = linear
        self.sizes = tuple(sizes)
        self.step = step
        self.a: Tensor | None = None
        self.b: Tensor | None = None
        self.factors: Tensor | None = None
        """[adapters, outputs] that the plain product counts times, where one of them is a DoRA."""

    @property
    def bias(self) -> Tensor | None:
        return self.linear.bias  # type: ignore[return-value]

    def forward(self, x: Tensor | Fp8) -> Tensor:
        return self._adapted(self.linear(x), x)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        if self.step.tokens is None or self.a is None:
            return self.linear.gated(x, activation)  # type: ignore[operator, no-any-return]
        return gate(self(x), activation)

    def scores(self, hidden: Tensor) -> Tensor:
        return self._adapted(self.linear.scores(hidden), hidden)  # type: ignore[operator]

    def _adapted(self, y: Tensor, x: Tensor | Fp8) -> Tensor:
        tokens = self.step.tokens
        if tokens is None or self.a is None or self.b is None:
            return y
        if self.factors is not None:
            factors = self.factors[tokens.slots.long()]
            y = y * factors if self.bias is None else (y - self.bias) * factors + self.bias
        floats = (x.values.float() * x.scales[:, None]).to(y.dtype) if isinstance(x, Fp8) else x
        return add_lora(y, floats, tokens.groups, tokens.slots, self.a, self.b, self.sizes)
