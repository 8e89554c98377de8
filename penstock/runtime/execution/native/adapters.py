"""Adapters of native steps: thin matrices in bf16, laid out as the library reads them, found by the address of their slot.

An adapter's own output matrix, or a change to the model's, is added here: such rows are not drawn by the library.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.execution.load.adapters import Adapter
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.execution.load.magnitudes import AddUp, with_factors
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.load import gate_order
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.packed import TILE, unpack

MATRICES = ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down")
"""In the order of a native layer's fields."""


class NativeBank:
    """Adapters by slot. Memory that the library reads is held as long as the slot is."""

    def __init__(self, model: NativeDecoder, num_slots: int, *, is_cut: bool = False) -> None:
        """`is_cut` says that ranks have columns of its matrices each."""
        if not model.library.has_adapters:
            raise ConfigError(
                "the native library is older than adapters; build it anew: python setup.py build_ext --inplace"
            )
        self.places = None
        self._model = model
        self._is_cut = is_cut
        self._order = gate_order(model.spec)
        self._held: dict[int, Any] = {}
        self._outputs: dict[int, LowRank] = {}
        self._heads: dict[int, Tensor] = {}
        self._shrunk = dict.fromkeys(range(num_slots + 1), 0)
        self._with_factors: set[int] = set()
        self.addresses = np.zeros(num_slots + 1, dtype=np.uint64)

    @property
    def shrunk_size(self) -> int:
        return max(1, *self._shrunk.values())

    @property
    def has_factors(self) -> bool:
        return bool(self._with_factors)

    def is_plain(self, slot: int) -> bool:
        return slot not in self._outputs and slot not in self._heads

    def read(self, path: str, spec: ModelSpec, max_rank: int, shard: ModelShard | None) -> None:
        """Numbers are laid out anew for the library."""

    @torch.inference_mode()
    def prepare(self, adapter: Adapter, add_up: AddUp | None = None) -> Adapter:
        if adapter.experts:
            raise ModelFileError("adapters of experts are not computed by native steps")
        return with_factors(adapter, self._squares, is_cut=self._is_cut, add_up=add_up)

    def put(self, slot: int, adapter: Adapter) -> None:
        held: list[Any] = []
        layers = (native.AdapterLayer * self._model.spec.num_layers)()
        widest, has_factors = 1, False
        for number, layer in enumerate(layers):
            for field, name in zip(native.AdapterLayer._fields_, MATRICES, strict=True):
                parts = adapter.changes.get(f"layers.{number}.{name}", ())
                matrix = getattr(layer, field[0])
                self._describe(matrix, f"layers.{number}.{name}", parts, held)
                widest = max(widest, sum(part.rank for part in parts if part is not None))
                has_factors = has_factors or any(part is not None and part.scales is not None for part in parts)
        described = native.NativeAdapter(layers=layers, has_factors=has_factors)
        lookup = adapter.changes.get("embedding", (None,))[0]
        if lookup is not None:
            pair = lookup.left.float().contiguous(), lookup.right.float().contiguous()
            held += pair
            described.left, described.right, described.rank = pair[0].data_ptr(), pair[1].data_ptr(), lookup.rank
        if "embedding" in adapter.tables:
            table = adapter.tables["embedding"].contiguous()
            held.append(table)
            described.embedding = table.data_ptr()
        output = adapter.changes.get("output", (None,))[0]
        if output is not None:
            self._outputs[slot] = output
        if "output" in adapter.tables:
            self._heads[slot] = adapter.tables["output"]
        self._held[slot] = (described, layers, held)
        self._shrunk[slot] = widest
        if has_factors:
            self._with_factors.add(slot)
        self.addresses[slot] = ctypes.addressof(described)

    def clear(self, slot: int) -> None:
        self.addresses[slot] = self._shrunk[slot] = 0
        self._with_factors.discard(slot)
        self._held.pop(slot, None)
        self._outputs.pop(slot, None)
        self._heads.pop(slot, None)

    def adapt_scores(self, scores: Tensor, hidden: Tensor, slots: Tensor) -> Tensor:
        """Scores of these slots' rows as their own output matrices make them."""
        softcap = self._model.spec.logit_softcap
        for slot in self._outputs.keys() | self._heads.keys():
            at = torch.where(slots == slot)[0]
            if not len(at):
                continue
            if softcap:
                raise ModelFileError("adapters of the output matrix of a model with capped scores are not served")
            if slot in self._heads:
                scores[at] = functional.linear(hidden[at], self._heads[slot])
            change = self._outputs.get(slot)
            if change is not None:
                if change.scales is not None:
                    scores[at] *= change.scales
                scores[at] += (hidden[at] @ change.right.t()) @ change.left.t()
        return scores

    def _squares(self, name: str, change: LowRank) -> Tensor:
        weight = unpack(self._model.matrix(name)).dequantize()
        if name.endswith("gate_up"):
            weight = torch.empty_like(weight).index_copy_(0, self._order, weight)
        return (weight[change.first : change.rows.stop] + change.left @ change.right).square().sum(1)

    def _describe(self, matrix: Any, name: str, parts: Sequence[LowRank | None], held: list[Any]) -> None:
        given = [part for part in parts if part is not None]
        matrix.num_parts = len(given)
        for target, part in zip(matrix.parts, given):
            if part.first % TILE or len(part.left) % TILE:
                raise ModelFileError(f"{name} is changed in rows that are not whole tiles")
            a = part.right.to(torch.bfloat16).contiguous()
            b = part.left.to(torch.bfloat16).view(-1, TILE, part.rank).transpose(1, 2).contiguous()
            held += (a, b)
            target.a, target.b = a.data_ptr(), b.data_ptr()
            target.rank, target.first, target.size = part.rank, part.first, len(part.left)
        if any(part.scales is not None for part in given):
            factors = torch.ones(self._model.matrix(name).num_rows)
            for part in given:
                if part.scales is not None:
                    factors[part.first : part.rows.stop] = part.scales
            held.append(factors)
            matrix.factors = factors.data_ptr()
