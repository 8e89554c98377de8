"""What a head borrows from the model it guesses for: token embeddings, rows of the output matrix, and its way of multiplying.

A head's own matrices are held as its target's are: packed for the native library, or as floats on the device.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.layers.adapted.linear import LoraLinear
from penstock.runtime.layers.adapted.table import LoraTable
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, pack, quantize, unpack

Projection = Callable[[Tensor], Tensor]
"""x [rows, inputs] times a matrix, in float32."""
Chooser = Callable[[Tensor], list[int]]
"""Gives the place of the likeliest output for each row of x [rows, hidden]; -1 where numbers are not finite."""


class NativeProjection:
    """A packed matrix, multiplied by the native library."""

    def __init__(self, library: native.Library, matrix: Grouped, bias: Tensor | None) -> None:
        self._library = library
        self._packed = pack(matrix)
        self._bias = None if bias is None else bias.float().contiguous()
        self._matrix = native.matrix_of(self._packed, self._bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._library.multiply(x, self._matrix)

    def likeliest(self, x: Tensor) -> list[int]:
        return [int(place) for place in self._library.likeliest(x, self._matrix).tolist()]


class FloatProjection:
    """A matrix of floats, multiplied by torch."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        self._weight = weight.to(device, torch.float32)
        self._bias = None if bias is None else bias.to(device, torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def likeliest(self, x: Tensor) -> list[int]:
        return likeliest(self(x))


def likeliest(scores: Tensor) -> list[int]:
    """Of each row the place of its largest number, -1 if it is not finite."""
    most, places = scores.max(-1)
    return [place if is_finite else -1 for place, is_finite in zip(places.tolist(), most.isfinite().tolist())]


class NativeTarget:
    device = torch.device("cpu")

    def __init__(self, model: NativeDecoder) -> None:
        self._model = model
        self._embedding = unpack(model.matrix("embedding"))
        self._scale = model.spec.embedding_scale

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [tokens, hidden] in float32, scaled as the model scales them."""
        rows = self._embedding.take(token_ids).dequantize()
        return rows if self._scale == 1.0 else rows * self._scale

    def hold(self, weight: Tensor, bias: Tensor | None = None) -> NativeProjection | FloatProjection:
        """A matrix of a head's own, held as the model's are."""
        if weight.shape[1] % GROUP:
            return FloatProjection(weight, bias, self.device)
        return NativeProjection(self._model.library, quantize(weight), bias)

    def chooser(self, token_ids: Tensor | None) -> Chooser:
        """Chooses among some tokens, or all, by the model's own output matrix."""
        if token_ids is None:
            return lambda x: [int(token) for token in self._model.likeliest(x).tolist()]
        output = unpack(self._model.matrix("output"))
        return NativeProjection(self._model.library, output.take(token_ids), None).likeliest

    def output_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the model's output matrix, in float32."""
        return unpack(self._model.matrix("output")).take(token_ids).dequantize()


class FloatTarget:
    """A model of torch modules, on any device. Heads were trained without adapters, and read none of them."""

    def __init__(self, model: Decoder) -> None:
        self._embedding = _plain(model.embedding)
        self._output = self._embedding if model.output is None else _plain(model.output)
        self._scale = model.spec.embedding_scale
        self._dtype = model.cache_dtype
        self.device = model.device

    def embed(self, token_ids: Tensor) -> Tensor:
        return _floats(self._embedding.weight)[token_ids].float() * self._scale

    def hold(self, weight: Tensor, bias: Tensor | None = None) -> FloatProjection:
        return FloatProjection(weight, bias, self.device)

    def chooser(self, token_ids: Tensor | None) -> Chooser:
        """What bends or scales scores afterwards leaves the likeliest what it is."""

        def choose(x: Tensor) -> list[int]:
            scores: Tensor = self._output.scores(x.to(self._dtype))  # type: ignore[operator]
            return likeliest(scores if token_ids is None else scores.index_select(1, token_ids))

        return choose

    def output_rows(self, token_ids: Tensor) -> Tensor:
        rows: Tensor = _floats(self._output.weight)[token_ids].float()
        return rows


HeadTarget = NativeTarget | FloatTarget
"""A loaded model, as its heads see it."""


def _plain(matrix: nn.Module) -> nn.Module:
    """A matrix without what adapters add to it."""
    match matrix:
        case LoraTable():
            return matrix.table
        case LoraLinear():
            return matrix.linear
        case _:
            return matrix


def _floats(weight: object) -> Tensor:
    if not isinstance(weight, Tensor):
        raise ConfigError(
            "the vocabulary of this model is packed for a GPU, which heads cannot read; add --dtype bfloat16"
        )
    return weight.detach()


def head_target(model: NativeDecoder | Decoder) -> HeadTarget:
    return NativeTarget(model) if isinstance(model, NativeDecoder) else FloatTarget(model)
