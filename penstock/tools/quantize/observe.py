"""What reaches each matrix of a layer while calibration text runs through it: watched by module swap, from outside."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.models.spec import Activation

SAMPLED_ROWS, ROWS_A_PIECE = 512, 32


class SeenInputs:
    """Sums over all rows that a matrix has been multiplied with: of magnitudes where `sizes` are asked for, of x x^T where
    `products` are, else of its diagonal alone."""

    def __init__(self, num_columns: int, device: torch.device, products: bool, sizes: bool = True) -> None:
        self.num_rows = 0
        self.most = torch.zeros(num_columns, device=device)
        """Largest magnitude of each input."""
        self.sample = torch.zeros((0, num_columns), device=device)
        """Some of the rows, where sizes are asked for."""
        self._sizes = sizes
        self._size = torch.zeros(num_columns, device=device)
        self._squares = torch.zeros(num_columns, device=device)
        self._products = torch.zeros((num_columns, num_columns), device=device) if products else None

    def add(self, rows: Tensor) -> None:
        rows = rows.float()
        self.num_rows += len(rows)
        if self._sizes:
            size = rows.abs()
            self.most = torch.maximum(self.most, size.amax(0))
            self._size += size.sum(0)
            if len(self.sample) < SAMPLED_ROWS:
                self.sample = torch.cat((self.sample, rows[:: -(-len(rows) // ROWS_A_PIECE)]))
        if self._products is None:
            self._squares += rows.square().sum(0)
        else:
            self._products.addmm_(rows.t(), rows)

    def divide(self, scales: Tensor) -> None:
        """As if every row had been divided so."""
        self.most, self._size, self._squares = self.most / scales, self._size / scales, self._squares / scales.square()
        self.sample = self.sample / scales
        if self._products is not None:
            self._products.div_(scales).div_(scales[:, None])

    @property
    def mean_size(self) -> Tensor:
        return self._size / max(self.num_rows, 1)

    @property
    def importance(self) -> Tensor:
        """Mean square of each input."""
        squares = self._squares if self._products is None else self._products.diagonal()
        return squares / max(self.num_rows, 1)

    @property
    def hessian(self) -> Tensor:
        if self._products is None:
            return torch.diag(self.importance)
        return self._products / max(self.num_rows, 1)


class ObservedLinear(nn.Module):
    def __init__(self, linear: Linear, products: bool, sizes: bool) -> None:
        super().__init__()
        self.linear = linear
        self.inputs = SeenInputs(linear.weight.shape[1], linear.weight.device, products, sizes)

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.add(x)
        return self.linear(x)  # type: ignore[no-any-return]

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        self.inputs.add(x)
        return self.linear.gated(x, activation)


class ObservedProjection(ObservedLinear):
    """Of queries, keys and values: their largest magnitudes are kept too, for the scales of a cache in few bits."""

    def __init__(self, linear: Linear, products: bool, sizes: bool) -> None:
        super().__init__(linear, products, sizes)
        self.most = torch.zeros(linear.weight.shape[0], device=linear.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        self.most = torch.maximum(self.most, found.abs().amax(0).float())
        return found


class LastObserved(ObservedLinear):
    """The matrix that a layer ends with: what it gives is not computed, for nobody reads it."""

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.add(x)
        return x.new_zeros((*x.shape[:-1], self.linear.weight.shape[0]))


@contextmanager
def observed(layer: nn.Module, products: bool, sizes: bool = True) -> Iterator[dict[str, ObservedLinear]]:
    """The linear layers of a layer by name, watched until the end of the `with`; what comes out of the layer is no use."""
    found: dict[str, ObservedLinear] = {}
    for path, module in list(layer.named_modules()):
        if isinstance(module, Linear):
            kind = KINDS.get(path.rpartition(".")[2], ObservedLinear)
            found[path] = kind(module, products, sizes)
            _swap(layer, path, found[path])
    try:
        yield found
    finally:
        for path, watched in found.items():
            _swap(layer, path, watched.linear)


KINDS: dict[str, type[ObservedLinear]] = {"qkv": ObservedProjection, "down": LastObserved}
"""By the last word of a matrix's name."""


def _swap(layer: nn.Module, path: str, module: nn.Module) -> None:
    owner, _, name = path.rpartition(".")
    setattr(layer.get_submodule(owner), name, module)
