"""Adapters of a decoder made of torch modules: its sublayers swapped, matrices side by side, slot by slot.

Buffers grow with the ranks that come; where one moves, what was recorded with it is recorded again (`epoch`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import ModelFileError
from penstock.runtime.execution.adapters.prepare import like_of, prepared
from penstock.runtime.execution.load.adapters import TABLES, Adapter
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.layers.adapted.linear import LoraLinear
from penstock.runtime.layers.adapted.mixture import ExpertChange, LoraMixture
from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.layers.adapted.table import LoraTable
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.layers.parallel import NormedProjection, SummedLinear, VocabularyScores
from penstock.runtime.models.adapters import base_recipes, matrix_shape
from penstock.runtime.models.sharding import ModelShard, shard_recipes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Stack

LEAST_RANK = 8
"""Ranks are rounded up to powers of two from here on."""


class ModuleBank:
    """Adapters of a decoder made of torch modules: matrices side by side, slot by slot."""

    def __init__(
        self, model: Decoder, spec: ModelSpec, step: AdapterStep, num_slots: int, shard: ModelShard | None = None
    ) -> None:
        """Swaps the model's sublayers, in place; `spec` is that of the whole model."""
        self.epoch = 0
        self._num_slots = num_slots
        self._linears: dict[str, LoraLinear] = {}
        self._tables: dict[str, LoraTable] = {}
        self._mixtures: dict[str, LoraMixture] = {}
        self._touched: dict[int, set[str]] = {}
        self._unplain: set[int] = set()
        self._swap(model, spec, step, shard)

    def _swap(self, model: Decoder, spec: ModelSpec, step: AdapterStep, shard: ModelShard | None) -> None:
        recipes = base_recipes(spec)
        recipes = recipes if shard is None else shard_recipes(recipes, shard)
        own = spec if shard is None else shard.spec
        for name, recipe in recipes.items():
            shape, path = matrix_shape(name, recipe, own), name.removesuffix(".weight")
            if shape is None or isinstance(recipe, Stack) or path in TABLES:
                continue
            self._linears[path] = _replaced(model, path, partial(LoraLinear, sizes=shape.rows, step=step))
        for path, module in list(model.named_modules()):
            if isinstance(module, MixtureOfExperts):
                self._mixtures[path] = _replaced(model, path, partial(LoraMixture, step=step))
        for table in TABLES:
            if table == "embedding" or model.output is not None:
                self._tables[table] = _replaced(model, table, partial(LoraTable, step=step))
        if model.output is None:
            self._tables["output"] = self._tables["embedding"]

    def is_plain(self, slot: int) -> bool:
        return slot not in self._unplain

    @torch.inference_mode()
    def prepare(self, adapter: Adapter) -> Adapter:
        for name in adapter.experts:
            if name.rpartition(".experts")[0] not in self._mixtures:
                raise ModelFileError("adapters of experts that are dealt out to ranks are not served")
        changes: dict[str, tuple[LowRank | None, ...]] = {}
        for name, parts in adapter.changes.items():
            module = self._tables[name].table if name in TABLES else self._linears[name].linear
            changes[name] = tuple(None if part is None else prepared(module, part) for part in parts)
        return replace(adapter, changes=changes)

    def put(self, slot: int, adapter: Adapter) -> None:
        self._touched[slot] = set()
        for name, changes in adapter.changes.items():
            if name in TABLES:
                self._put_table(slot, name, changes[0])
            else:
                self._put_linear(slot, self._linears[name], changes)
                self._touched[slot].add(name)
        for name, values in adapter.tables.items():
            self._put_whole(slot, name, values)
        self._put_experts(slot, adapter)
        if adapter.tables or adapter.experts or any(name in adapter.changes for name in TABLES):
            self._unplain.add(slot)

    def clear(self, slot: int) -> None:
        for name in self._touched.pop(slot, ()):
            linear = self._linears[name]
            if linear.a is not None and linear.b is not None:
                linear.a[slot].zero_()
                linear.b[slot].zero_()
            if linear.factors is not None:
                linear.factors[slot].fill_(1.0)
        for table in self._tables.values():
            table.forget(slot)
        for mixture in self._mixtures.values():
            mixture.changes.pop(slot, None)
        self._unplain.discard(slot)

    def _put_linear(self, slot: int, linear: LoraLinear, changes: tuple[LowRank | None, ...]) -> None:
        given = [change for change in changes if change is not None]
        like = like_of(linear.linear)
        rank, columns = max(change.rank for change in given), given[0].right.shape[1]
        a, b = self._room(linear, rank, columns, like)
        rank, first = b.shape[2], 0
        for number, (change, size) in enumerate(zip(changes, linear.sizes, strict=True)):
            if change is not None:
                if change.scales is not None:
                    self._factors(linear, like)[slot, first : first + size].copy_(change.scales, non_blocking=True)
                a[slot, number * rank : number * rank + change.rank].copy_(change.right, non_blocking=True)
                b[slot, first : first + size, : change.rank].copy_(change.left, non_blocking=True)
            first += size

    def _room(self, linear: LoraLinear, rank: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Buffers of the sublayer that hold such a rank; zeros where nothing was laid."""
        rank = max(LEAST_RANK, 1 << (rank - 1).bit_length())
        parts, old_a, old_b = len(linear.sizes), linear.a, linear.b
        if old_a is not None and old_b is not None and old_b.shape[2] >= rank:
            return old_a, old_b
        self.epoch += 1
        count = self._num_slots + 1
        a = torch.zeros((count, parts, rank, columns), dtype=like.dtype, device=like.device)
        b = torch.zeros((count, sum(linear.sizes), rank), dtype=like.dtype, device=like.device)
        if old_a is not None and old_b is not None:
            a[:, :, : old_b.shape[2]] = old_a.view(count, parts, old_b.shape[2], columns)
            b[:, :, : old_b.shape[2]] = old_b
        linear.a, linear.b = a.view(count, parts * rank, columns), b
        return linear.a, linear.b

    def _factors(self, linear: LoraLinear, like: Tensor) -> Tensor:
        if linear.factors is None:
            self.epoch += 1
            shape = (self._num_slots + 1, sum(linear.sizes))
            linear.factors = torch.ones(shape, dtype=like.dtype, device=like.device)
        return linear.factors

    def _put_table(self, slot: int, name: str, change: LowRank | None) -> None:
        if change is None:
            return
        table = self._tables[name]
        device = like_of(table.table).device
        if change.scales is not None:
            table.factors[slot] = change.scales.to(device)
        pair = change.left.to(device), change.right.to(device)
        (table.lookups if name == "embedding" else table.outputs)[slot] = pair

    def _put_whole(self, slot: int, name: str, values: Tensor) -> None:
        table = self._tables[name]
        like = like_of(table.table)
        placed = values.to(like.device, like.dtype)
        (table.embeddings if name == "embedding" else table.heads)[slot] = placed

    def _put_experts(self, slot: int, adapter: Adapter) -> None:
        for path, mixture in self._mixtures.items():
            parts = {part: adapter.experts.get(f"{path}.experts.{part}") for part in ("gate_up", "down")}
            if not any(parts.values()):
                continue
            device, spec = mixture.mixture.experts.down.weight.device, mixture.mixture.spec
            gate_up = parts["gate_up"] or ((None,) * 2,) * spec.num_experts
            joined = tuple(
                _stacked([expert[number] for expert in gate_up], device) for number in range(len(gate_up[0]))
            )
            down = _stacked([expert[0] for expert in parts["down"]], device) if parts["down"] else None
            mixture.changes[slot] = ExpertChange(joined, down)


def _replaced(model: nn.Module, path: str, make: Callable[[Any], Any]) -> Any:
    """Put a sublayer in the place of another; where ranks have something around it, inside of that."""
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    module = getattr(parent, name)
    if isinstance(module, SummedLinear | NormedProjection):
        module.linear = made = make(module.linear)
    elif isinstance(module, VocabularyScores):
        module.table = made = make(module.table)
    else:
        made = make(module)
        setattr(parent, name, made)
    return made


def _stacked(changes: Sequence[LowRank | None], device: torch.device) -> tuple[Tensor, Tensor] | None:
    given = [change for change in changes if change is not None]
    if not given:
        return None
    rank = max(change.rank for change in given)
    left = torch.zeros((len(changes), len(given[0].left), rank), device=device)
    right = torch.zeros((len(changes), rank, given[0].right.shape[1]), device=device)
    for number, change in enumerate(changes):
        if change is not None:
            left[number, :, : change.rank] = change.left
            right[number, : change.rank] = change.right
    return left, right
