"""Adapters of native steps: thin matrices in bf16, laid out as the library reads them, found by the address of their slot.

An adapter's own output matrix, or a change to the model's, is added here: such rows are not drawn by the library.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.adapters import Adapter, ReadyAdapter
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.execution.load.magnitudes import AddUp, with_factors
from penstock.runtime.execution.native.decoder import MATRICES, NativeDecoder
from penstock.runtime.execution.native.load import gate_order
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.quantized.packed import GROUP, TILE, unpack


@dataclass(frozen=True, slots=True)
class NativeNumbers(ReadyAdapter):
    """An adapter as the library reads it, for as long as this is held."""

    adapter: Adapter
    """What of it the library does not compute: its output matrix, or what it changes of the model's."""
    rank: int
    shrunk_size: int
    described: native.NativeAdapter
    held: tuple[Tensor, ...]

    @property
    def num_bytes(self) -> int:
        return self.adapter.num_bytes + sum(tensor.nbytes for tensor in self.held)


class NativeBank:
    """Adapters by slot. Memory that the library reads is held as long as the slot is."""

    def __init__(self, model: NativeDecoder, num_slots: int, *, is_cut: bool = False) -> None:
        """`is_cut` says that ranks have columns of its matrices each."""
        self.places = None
        self._model = model
        self._is_cut = is_cut
        self._order = gate_order(model.spec)
        self._slots: dict[int, NativeNumbers] = {}
        self._outputs: dict[int, Adapter] = {}
        """Of slots that bring an output matrix, or change the model's."""
        self.shrunk_size = 1
        self.addresses = np.zeros(num_slots + 1, dtype=np.uint64)

    def is_plain(self, slot: int) -> bool:
        return slot not in self._outputs

    def read(self, path: str, spec: ModelSpec, max_rank: int, shard: ModelShard | None) -> None:
        """Never ready right from its files: numbers are laid out anew for the library."""

    @torch.inference_mode()
    def prepare(self, adapter: Adapter, add_up: AddUp | None = None) -> NativeNumbers:
        if adapter.experts:
            raise ModelFileError("adapters of experts are not computed by native steps")
        adapter = with_factors(adapter, self._squares, is_cut=self._is_cut, add_up=add_up)
        numbers = _LaidOut(adapter)
        layers = (native.AdapterLayer * self._model.spec.num_layers)()
        for number, layer in enumerate(layers):
            for field, name in zip(native.AdapterLayer._fields_, MATRICES, strict=True):
                parts = adapter.changes.get(f"layers.{number}.{name}", ())
                self._describe(getattr(layer, field[0]), f"layers.{number}.{name}", parts, numbers)
        described = native.NativeAdapter(layers=layers)
        lookup = adapter.changes.get("embedding", (None,))[0]
        if lookup is not None:
            described.left, described.right = numbers.hold(lookup.left.float()), numbers.hold(lookup.right.float())
            described.rank = lookup.rank
        if "embedding" in adapter.tables:
            described.embedding = numbers.hold(adapter.tables["embedding"])
        rest = replace(
            adapter,
            changes={name: parts for name, parts in adapter.changes.items() if name == "output"},
            tables={name: table for name, table in adapter.tables.items() if name == "output"},
        )
        return NativeNumbers(rest, adapter.rank, numbers.widest, described, tuple(numbers.held))

    def put(self, slot: int, numbers: NativeNumbers) -> None:
        """Numbers stay where they are: a slot is an address."""
        if numbers.adapter.changes or numbers.adapter.tables:
            self._outputs[slot] = numbers.adapter
        self._slots[slot] = numbers
        self.shrunk_size = max(self.shrunk_size, numbers.shrunk_size)
        self.addresses[slot] = ctypes.addressof(numbers.described)

    def clear(self, slot: int) -> None:
        self.addresses[slot] = 0
        self._slots.pop(slot, None)
        self._outputs.pop(slot, None)

    def adapt_scores(self, scores: Tensor, hidden: Tensor, slots: Tensor) -> Tensor:
        """Scores of these slots' rows as their own output matrices make them."""
        softcap = self._model.spec.logit_softcap
        for slot, adapter in self._outputs.items():
            at = torch.where(slots == slot)[0]
            if not len(at):
                continue
            if "output" in adapter.tables:
                made = functional.linear(hidden[at], adapter.tables["output"])
            else:
                made = self._model.uncapped_scores(hidden[at]) if softcap else scores[at]
            change = adapter.changes.get("output", (None,))[0]
            if change is not None:
                if change.scales is not None:
                    made *= change.scales
                made += (hidden[at] @ change.right.t()) @ change.left.t()
            scores[at] = softcap * torch.tanh(made / softcap) if softcap else made
        return scores

    def _squares(self, name: str, change: LowRank) -> Tensor:
        weight = unpack(self._model.matrix(name)).dequantize()
        if name.endswith("gate_up"):
            weight = torch.empty_like(weight).index_copy_(0, self._order, weight)
        return (weight[change.first : change.rows.stop] + change.left @ change.right).square().sum(1)

    def _describe(self, matrix: Any, name: str, parts: Sequence[LowRank | None], numbers: "_LaidOut") -> None:
        given = [part for part in parts if part is not None]
        matrix.num_parts = len(given)
        for target, part in zip(matrix.parts, given):
            if part.first % TILE or len(part.left) % TILE:
                raise ModelFileError(f"{name} is changed in rows that are not whole tiles")
            target.a, target.b = numbers.lay_out(part)
            target.rank, target.first, target.size = _even(part.rank), part.first, len(part.left)
        numbers.widest = max(numbers.widest, sum(_even(part.rank) for part in given))
        if any(part.scales is not None for part in given):
            factors = torch.ones(self._model.matrix(name).num_rows)
            for part in given:
                if part.scales is not None:
                    factors[part.first : part.rows.stop] = part.scales
            matrix.factors = numbers.hold(factors)


class _LaidOut:
    """Thin matrices of all layers in one run of memory, as the library reads them, and what else it is to find."""

    def __init__(self, adapter: Adapter) -> None:
        parts = [part for name, each in adapter.changes.items() if name.endswith(MATRICES) for part in each]
        sizes = [_even(part.rank) * (len(part.left) + part.right.shape[1]) for part in parts if part is not None]
        self._numbers = torch.zeros(sum(sizes), dtype=torch.bfloat16)
        self._end = 0
        self.held: list[Tensor] = [self._numbers]
        self.widest = 1
        """Numbers that the thin products of one matrix take, at most."""

    def hold(self, tensor: Tensor) -> int:
        """Where a tensor lies from now on."""
        self.held.append(tensor.contiguous())
        return self.held[-1].data_ptr()

    def lay_out(self, part: LowRank) -> tuple[int, int]:
        """Where A and B lie. What the library widens by one load stands side by side: columns half a group apart, and two ranks
        of a row."""
        rank, groups, tiles = _even(part.rank), part.right.shape[1] // GROUP, len(part.left) // TILE
        a = self._take(rank, groups, TILE, 2)
        a[: part.rank].copy_(part.right.view(part.rank, groups, 2, TILE).transpose(2, 3))
        b = self._take(tiles, rank // 2, TILE, 2)
        left = part.left.view(tiles, TILE, part.rank)
        for odd in range(2):
            ours = left[..., odd::2].transpose(1, 2)
            b[:, : ours.shape[1], :, odd] = ours
        return a.data_ptr(), b.data_ptr()

    def _take(self, *shape: int) -> Tensor:
        begin, self._end = self._end, self._end + math.prod(shape)
        return self._numbers[begin : self._end].view(shape)


def _even(rank: int) -> int:
    return rank + rank % 2
