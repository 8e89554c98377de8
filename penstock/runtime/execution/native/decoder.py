"""Dense decoders of quantized files on a CPU: packed weights and one native call a step.

`NativeDecoder` stands where a `layers.Decoder` stands. It keeps the KV cache in bf16 or int8, in an order of its own within a
block (see `ops/cpu/native/abi.h`), so a cache it has written is read by it alone.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import GQA, Activation, GatedMLP, ModelSpec, Rope, only_gqa
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.cpu.library import Library
from penstock.runtime.ops.layout import AnyCache, ScaledCache
from penstock.runtime.ops.quantized.packed import GROUP, TILE, Packed

ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}
MAX_HEAD_DIM = 256
NATIVE = "computed by native steps"
Parameter = TypeVar("Parameter")
KEPT_SCORES = 1 << 22
"""Scores that a decoder keeps room for, 16 MiB."""


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """By our parameter names. `gate_up` has runs of 32 gate rows, then the same 32 up rows."""

    matrices: dict[str, Packed]
    vectors: dict[str, Tensor]


def native_obstacle(spec: ModelSpec) -> str | None:
    """What of a model the native step cannot compute; None if it can all."""
    layer = spec.layers[0]
    attention, mlp = layer.attention, layer.mlp
    if not spec.generates or spec.learned_positions or spec.token_types or spec.embedding_norm:
        return "it is no plain decoder"
    if spec.norm.kind != "rms" or layer.norms not in ("pre", "sandwich"):
        return "its norms"
    if not isinstance(mlp, GatedMLP) or mlp.activation not in ACTIVATIONS:
        return "its feed-forward sublayer"
    if not isinstance(attention, GQA) or attention.sinks or attention.qk_norm == "full" or not attention.causal:
        return "its attention"
    if attention.gated:
        return "gates over its attention"
    if attention.head_dim % GROUP or attention.head_dim > MAX_HEAD_DIM:
        return f"heads of {attention.head_dim} numbers"
    if spec.hidden_size % GROUP or mlp.width % GROUP:
        return "sizes that are not whole groups"
    if not all(isinstance(each.attention, GQA) for each in spec.layers):
        return "its attention"
    if (
        len({_shape(each.attention) for each in spec.layers if isinstance(each.attention, GQA)}) > 1
        or len({each.norms for each in spec.layers}) > 1
    ):
        return "layers of different shapes"
    return None if len({each.mlp for each in spec.layers}) == 1 else "layers of different shapes"


def _shape(attention: GQA) -> tuple[object, ...]:
    rotary_dim = None if attention.rope is None else attention.rope.dim
    return attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.qk_norm, rotary_dim


class NativeDecoder:
    cache_dtype = torch.bfloat16
    device = torch.device("cpu")

    def __init__(self, spec: ModelSpec, weights: NativeWeights, library: Library, is_invariant: bool = False) -> None:
        self.spec = spec
        self._weights = weights
        self.library = library
        self._is_invariant = is_invariant
        self.ropes = list(dict.fromkeys(layer.attention.rope for layer in spec.layers if layer.attention.rope))
        """Distinct rotations, in the order of the native layers' numbers."""
        self._first_with = [_first_with(rope, spec) for rope in self.ropes]
        self._layers = (native.NativeLayer * spec.num_layers)(*(self._layer(i) for i in range(spec.num_layers)))
        self._model = self._describe()
        self._caches: Sequence[AnyCache] | None = None
        layout = spec.cache_layout()
        self._tables = [layout.table(number) for number in range(spec.num_layers)]
        """Which of a row's block tables each layer reads where windows free their blocks."""
        # Kept between steps: fresh memory of this size would cost as much as computing what goes there.
        self._scores = torch.empty((KEPT_SCORES // spec.vocab_size, spec.vocab_size))

    def matrix(self, name: str) -> Packed:
        """A packed matrix by its name; `output` is the embedding where they are one."""
        is_shared = name == "output" and self.spec.tied_embedding
        return self._weights.matrices["embedding.weight" if is_shared else f"{name}.weight"]

    def with_vocabulary(self, count: int) -> "NativeDecoder":
        """The model over the same weights, whose likeliest token is one of the first so many: vocabularies are mostly in the
        order of frequency, and the output matrix of a small model is a large part of it."""
        model = NativeDecoder(self.spec, self._weights, self.library, self._is_invariant)
        model._model.output.num_rows = min(count, model._model.output.num_rows)
        return model

    def parameters(self) -> Iterator[Tensor]:
        """Everything that is held for the model."""
        yield from (matrix.data for matrix in self._weights.matrices.values())
        yield from self._weights.vectors.values()

    def __call__(
        self,
        token_ids: Tensor,
        step: Step,
        sharing: native.Sharing | None = None,
        adaptation: native.Adaptation | None = None,
    ) -> Tensor:
        """Final hidden states [tokens, hidden], in float32; of no use where one of several ranks was lost."""
        if step.caches is not self._caches:
            self._bind(step.caches, frees=bool(step.others))
        layout = step.layout
        hidden = torch.empty((len(token_ids), self.spec.hidden_size))
        # The names keep these alive for as long as the call reads them.
        slots, tables, starts, contexts = layout.slots, layout.block_tables, layout.query_starts, layout.context_lengths
        if step.others:
            slots = torch.cat([slots, *(other.slots for other in step.others)])
            tables = torch.cat([tables, *(other.block_tables for other in step.others)])
        if tables.stride(1) != 1:
            raise EngineError("block tables must be stored row by row")
        angles = [step.angles[first] for first in self._first_with]
        cosines, sines = (pointers([each[i] for each in angles if each is not None]) for i in range(2))
        inputs = native.NativeStep(
            token_ids.data_ptr(),
            slots.data_ptr(),
            tables.data_ptr(),
            starts.data_ptr(),
            contexts.data_ptr(),
            cosines,
            sines,
            hidden.data_ptr(),
            len(token_ids),
            len(contexts),
            tables.stride(0),
        )
        if sharing is None:
            self.library.step(self._model, inputs)
        elif adaptation is not None:
            self.library.adapted_step(self._model, inputs, sharing, adaptation)
        else:
            self.library.shared_step(self._model, inputs, sharing)
        return hidden

    def compute(
        self, step: native.RowsStep, caches: Sequence[AnyCache], adaptation: native.Adaptation | None = None
    ) -> bool:
        """A step described by rows; False, with nothing done, if it reaches beyond their blocks."""
        if caches is not self._caches:
            self._bind(caches, frees=step.num_tables > 1)
        return self.library.step_rows(self._model, step, adaptation)

    def scores(self, hidden: Tensor) -> Tensor:
        """float32 scores over the vocabulary for some hidden states; the next call may write over them."""
        scores = self._scores[: len(hidden)] if len(hidden) <= len(self._scores) else None
        return self._multiply(hidden, self.spec.logit_softcap, scores)

    def uncapped_scores(self, hidden: Tensor) -> Tensor:
        """What a soft cap has still to bend, in memory of its own."""
        return self._multiply(hidden, None, None)

    def _multiply(self, hidden: Tensor, softcap: float | None, out: Tensor | None) -> Tensor:
        return self.library.multiply(
            hidden, self._model.output, is_invariant=self._is_invariant, softcap=softcap or 0.0, out=out
        )

    def likeliest(self, hidden: Tensor, allowed: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The likeliest token after each hidden state, `NOT_DRAWN` where scores are not finite. No scores are laid down.

        With bitmasks `allowed`, and which of them holds for each state, of those tokens; `NOTHING_LEFT` where there is none.
        A soft cap is left out: it leaves the order as it is, or makes large scores equal.
        """
        return self.library.likeliest(hidden, self._model.output, is_invariant=self._is_invariant, allowed=allowed)

    def _bind(self, caches: Sequence[AnyCache], *, frees: bool = False) -> None:
        strides = {_block_stride(cache) for cache in caches}
        for layer, cache, table in zip(self._layers, caches, self._tables, strict=True):
            layer.table = table if frees else 0
            is_known = isinstance(cache, ScaledCache) or cache.keys.dtype == torch.bfloat16
            if cache.block_size % TILE or not is_known or len(strides) > 1 or None in strides:
                raise EngineError(
                    f"the native step needs a bf16 or int8 cache in blocks of a multiple of {TILE} tokens"
                )
            layer.keys, layer.values = cache.keys.data_ptr(), cache.values.data_ptr()
            if isinstance(cache, ScaledCache):
                layer.key_scales, layer.value_scales = cache.key_scales.data_ptr(), cache.value_scales.data_ptr()
        self._model.block_size = caches[0].block_size
        self._model.block_stride = strides.pop()
        self._caches = caches

    def _matrix(self, name: str) -> native.Matrix:
        """An empty one where another stage of a pipeline has it."""
        packed = self._weights.matrices.get(f"{name}.weight")
        return (
            native.Matrix() if packed is None else native.matrix_of(packed, self._weights.vectors.get(f"{name}.bias"))
        )

    def _vector(self, name: str) -> int | None:
        vector = self._weights.vectors.get(name)
        return None if vector is None else vector.data_ptr()

    def _layer(self, number: int) -> native.NativeLayer:
        attention, at = only_gqa(self.spec.layers[number].attention, NATIVE), f"layers.{number}."
        return native.NativeLayer(
            *(self._matrix(at + name) for name in MATRICES),
            *(self._vector(f"{at}{name}.weight") for name in NORMS),
            rotation=self.ropes.index(attention.rope) if attention.rope else -1,
            window=attention.window or 0,
            scale=attention.scale,
            softcap=attention.logit_softcap or 0.0,
        )

    def _describe(self) -> native.NativeModel:
        spec, layer = self.spec, self.spec.layers[0]
        attention, mlp = only_gqa(layer.attention, NATIVE), layer.mlp
        if not isinstance(mlp, GatedMLP):
            raise EngineError("the native step computes gated feed-forward sublayers only")
        return native.NativeModel(
            layers=self._layers,
            norm=self._vector("norm.weight"),
            embedding=self._matrix("embedding"),
            output=self._matrix("embedding" if spec.tied_embedding else "output"),
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            rotary_dim=attention.rope.dim if attention.rope else 0,
            mlp_width=mlp.width,
            activation=ACTIVATIONS[mlp.activation],
            invariant=self._is_invariant,
            eps=spec.norm.eps,
            embedding_scale=spec.embedding_scale,
        )


MATRICES = ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down")
NORMS = (
    "attention_norm",
    "attention_post_norm",
    "mlp_norm",
    "mlp_post_norm",
    "attention.q_norm",
    "attention.k_norm",
)
"""In the order of the native layer's fields."""


def _block_stride(cache: AnyCache) -> int | None:
    """Keys from one block to the next; None if its parts do not agree on it, or a block is not in one piece."""
    strides = {part.stride(0) if part.ndim == 3 else part.stride(0) // part.shape[-1] for part in cache}
    return strides.pop() if len(strides) == 1 and all(part[0].is_contiguous() for part in cache) else None


def _first_with(rope: Rope, spec: ModelSpec) -> int:
    return next(number for number, layer in enumerate(spec.layers) if layer.attention.rope == rope)


def pointers(tensors: list[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
