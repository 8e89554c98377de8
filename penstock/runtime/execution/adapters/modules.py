"""Adapters of a decoder made of torch modules: its sublayers swapped, a run of memory for every slot.

    numbers   | slot 1: A B of a linear, A B of the next ...    | slot 2 ...
    places      [slots, linears, 4]: where in a slot a linear finds its own

Both are as large as they will ever be and stay where they are: what was recorded with them stays valid. Memory that was never
written to is not taken from a CPU.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.execution.adapters.direct import INFINITIES, DirectReader
from penstock.runtime.execution.adapters.pinned import SPARE_BYTES, PinnedNumbers, PinnedPieces
from penstock.runtime.execution.adapters.prepare import (
    FileLayout,
    PreparedAdapter,
    like_of,
    pack,
    rounded_rank,
    squares_with,
)
from penstock.runtime.execution.device import rest_torch
from penstock.runtime.execution.load.adapters import MAX_RANK, TABLES, Adapter
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.execution.load.magnitudes import AddUp, with_factors
from penstock.runtime.layers.adapted.linear import LoraLinear
from penstock.runtime.layers.adapted.mixture import ExpertChange, LoraExperts
from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.layers.adapted.table import LoraTable
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.layers.parallel import DealtExperts, NormedProjection, StageInput, SummedLinear, VocabularyScores
from penstock.runtime.models.adapters import base_recipes, matrix_shape
from penstock.runtime.models.sharding import ModelShard, shard_recipes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Stack
from penstock.runtime.ops.grouped.laying import MOVE, lay_matrices
from penstock.runtime.ops.grouped.lora import LoraBank, is_even

PINNED_BYTES = 4 << 30
"""Most of host memory that is ready for adapters from the start; more is taken when it is needed, and steps wait for that."""


class ModuleBank:
    """Adapters of a decoder made of torch modules."""

    def __init__(
        self,
        model: Decoder,
        spec: ModelSpec,
        step: AdapterStep,
        num_slots: int,
        max_rank: int = MAX_RANK,
        shard: ModelShard | None = None,
    ) -> None:
        """Swaps the model's sublayers, in place; `spec` is that of the whole model."""
        self._linears: dict[str, LoraLinear] = {}
        self._tables: dict[str, LoraTable] = {}
        self._mixtures: dict[str, LoraExperts] = {}
        self._unplain: set[int] = set()
        self._is_cut = shard is not None and shard.place.ranks.tensor > 1
        self._rank = rounded_rank(max_rank)
        room = self._swap(model, spec, step, shard)
        self._like = like_of(next(iter(self._linears.values())).linear)
        device = self._like.device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._side is not None and not all(is_even(linear.sizes) for linear in self._linears.values()):
            raise ConfigError(
                "adapters are not served on a GPU over heads that are no multiple of 16 wide; leave them out"
            )
        self._pieces = PinnedPieces(is_pinned=self._side is not None)
        self._direct = DirectReader(self._linears, self._rank, device, self._pieces)
        outputs = sum(sum(linear.sizes) for linear in self._linears.values())
        self._numbers = torch.empty((num_slots, room), dtype=self._like.dtype, device=device)
        self.places = torch.zeros((num_slots + 1, len(self._linears), 4), dtype=torch.int32, device=device)
        self._factors = torch.empty((num_slots + 1, outputs), device=device)
        first = 0
        for number, linear in enumerate(self._linears.values()):
            factors = self._factors[:, first : first + sum(linear.sizes)]
            linear.bank = LoraBank(self._numbers, self.places[:, number], factors, self._rank, number)
            first += sum(linear.sizes)
        if self._side is not None:
            self._pieces.pin(min(PINNED_BYTES, 2 * self._numbers.nbytes) + SPARE_BYTES)
            rest_torch()  # adapters are read by threads of our own
            self._rehearse()

    def _rehearse(self) -> None:
        """Kernels that lay adapters out are compiled before somebody waits for one."""
        moves = torch.zeros((1, MOVE), dtype=torch.int64, device=self._like.device)
        for kind in INFINITIES:
            source = torch.zeros(1, dtype=kind, device=self._like.device)
            lay_matrices(self._numbers[0], source, moves, torch.zeros(1, device=self._like.device))

    def _swap(self, model: Decoder, spec: ModelSpec, step: AdapterStep, shard: ModelShard | None) -> int:
        """How many numbers a slot holds."""
        room = 0
        recipes = base_recipes(spec)
        recipes = recipes if shard is None else shard_recipes(recipes, shard)
        own = spec if shard is None else shard.spec
        for name, recipe in recipes.items():
            shape, path = matrix_shape(name, recipe, own), name.removesuffix(".weight")
            if shape is None or isinstance(recipe, Stack) or path in TABLES:
                continue
            self._linears[path] = _replaced(model, path, partial(LoraLinear, sizes=shape.rows, step=step))
            room += self._rank * (len(shape.rows) * shape.columns + sum(shape.rows))
        for path, module in model.named_modules():
            if isinstance(module, MixtureOfExperts) and not isinstance(module.mix, DealtExperts):
                self._mixtures[path] = LoraExperts(module, step)
        for table in TABLES:
            there = getattr(model, table)
            if there is not None and not isinstance(there, StageInput):
                self._tables[table] = _replaced(model, table, partial(LoraTable, step=step))
        if model.output is None and "embedding" in self._tables:
            self._tables["output"] = self._tables["embedding"]
        return room

    def is_plain(self, slot: int) -> bool:
        """All it changes are matrices of layers: nothing is looked through slot by slot."""
        return slot not in self._unplain

    @torch.inference_mode()
    def read(self, path: str, spec: ModelSpec, max_rank: int, shard: ModelShard | None) -> PreparedAdapter | None:
        """An adapter made ready right from its files, from any thread; None where it has to be read and prepared."""
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            return self._direct.read(path, spec, max_rank, shard)

    @torch.inference_mode()
    def prepare(self, adapter: Adapter, add_up: AddUp | None = None) -> PreparedAdapter:
        """What can be done before there is a slot, from any thread: numbers as they will lie, DoRA's lengths found. On a GPU
        beside the steps, which it does not wait for."""
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            return self._prepared(adapter, add_up)

    def _prepared(self, adapter: Adapter, add_up: AddUp | None) -> PreparedAdapter:
        for name in adapter.experts:
            if name.rpartition(".experts")[0] not in self._mixtures:
                raise ModelFileError("adapters of experts that are dealt out to ranks are not served")
        scaled = with_factors(adapter, self._squares, is_cut=self._is_cut, add_up=add_up)
        pieces = None if self._side is None else self._pieces
        return pack(scaled, self._linears, self._rank, self._like, pieces)

    def _squares(self, name: str, change: LowRank) -> Tensor:
        return squares_with(self._tables[name] if name in self._tables else self._linears[name], change)

    def put(self, slot: int, prepared: PreparedAdapter) -> None:
        if isinstance(prepared.numbers, PinnedNumbers):
            self._fill(slot, prepared.numbers, prepared.layout)
        else:
            self._numbers[slot - 1, : len(prepared.numbers)].copy_(prepared.numbers)
        if prepared.factors is not None:
            self._factors[slot].copy_(prepared.factors, non_blocking=True)
        self.places[slot].copy_(prepared.places, non_blocking=True)
        adapter = prepared.adapter
        for name, changes in adapter.changes.items():
            self._put_table(slot, name, changes[0])
        for name, values in adapter.tables.items():
            self._put_whole(slot, name, values)
        self._put_experts(slot, adapter)
        if adapter.tables or adapter.experts or adapter.changes:
            self._unplain.add(slot)

    def _fill(self, slot: int, numbers: PinnedNumbers, layout: FileLayout | None) -> None:
        target = self._numbers[slot - 1]
        if layout is None:
            numbers.copy_to(target)
            return
        staged = torch.empty(-(-numbers.num_bytes // 4) * 4, dtype=torch.uint8, device=target.device)
        numbers.copy_to(staged)
        lay_matrices(target, staged.view(layout.kind), layout.moves, layout.scales)

    def clear(self, slot: int) -> None:
        self.places[slot].zero_()
        for table in self._tables.values():
            table.forget(slot)
        for mixture in self._mixtures.values():
            mixture.changes.pop(slot, None)
        self._unplain.discard(slot)

    def _put_table(self, slot: int, name: str, change: LowRank | None) -> None:
        if change is None:
            return
        table = self._tables[name]
        like = like_of(table.table)
        if change.scales is not None:
            table.factors[slot] = change.scales.to(like.device)
        pair = change.left.to(like.device, like.dtype), change.right.to(like.device, like.dtype)
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
            device = mixture.like.device
            gate_up = parts["gate_up"] or ((None,) * 2,) * len(mixture.like)
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
