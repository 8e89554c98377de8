"""Adapters on a device: slots that a model's sublayers read, and which slot each row has.

Slot 0 is none. Buffers grow with the ranks that come; where one moves, what was recorded with it is recorded again (`epoch`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import EngineError
from penstock.runtime.core.batch import Arrival, Chunk
from penstock.runtime.execution.load.adapters import TABLES, Adapter, read_adapter
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.lora import AdapterStep, ExpertChange, LoraLinear, LoraMixture, LoraTable, TokenSlots
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.layers.parallel import NormedProjection, SummedLinear, VocabularyScores
from penstock.runtime.models.adapters import base_recipes, matrix_shape
from penstock.runtime.models.sharding import ModelShard, shard_recipes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Stack
from penstock.runtime.ops.lora import group_tokens

LEAST_RANK = 8
"""Ranks are rounded up to powers of two from here on."""
IDENTITY_ROWS = 512


class AdapterBank(Protocol):
    """Where a model's sublayers, or its native steps, find adapters by slot."""

    epoch: int
    """Counts what was recorded before and does not hold any more."""

    def put(self, slot: int, adapter: Adapter) -> None: ...

    def clear(self, slot: int) -> None: ...

    def is_plain(self, slot: int) -> bool:
        """All it changes are matrices of layers: nothing is looked through slot by slot."""


class AdapterSlots:
    """Which adapter lies in which slot, and which slot each row has. Belongs to the thread that launches steps."""

    def __init__(
        self,
        bank: AdapterBank,
        spec: ModelSpec,
        *,
        num_slots: int,
        max_rank: int,
        num_rows: int,
        device: torch.device,
        shard: ModelShard | None = None,
        step: AdapterStep | None = None,
    ) -> None:
        self.bank = bank
        self.num_slots = num_slots
        self.step = step or AdapterStep()
        self._spec = spec
        self._shard = shard
        self._max_rank = max_rank
        self._slots: dict[str, int] = {}
        self._free = list(range(num_slots, 0, -1))
        self._of_rows = np.zeros(num_rows, dtype=np.int32)
        self.on_device = torch.zeros(num_rows, dtype=torch.int32, device=device)
        """Slots of all rows at one address, for recorded steps."""
        self._device = device
        self._is_adapted = False

    # Adapters

    def read(self, path: str) -> Adapter:
        """From any thread; ModelFileError says why an adapter is refused."""
        return read_adapter(Path(path), self._spec, self._max_rank, self._shard)

    @torch.inference_mode()
    def place(self, adapter: Adapter) -> None:
        """Lay an adapter into a free slot; there is one."""
        if adapter.digest in self._slots:
            return
        slot = self._free.pop()
        try:
            self.bank.put(slot, adapter)
        except BaseException:
            self._free.append(slot)
            raise
        self._slots[adapter.digest] = slot

    def remove(self, digest: str) -> None:
        """No row has it any more."""
        slot = self._slots.pop(digest)
        self._free.append(slot)
        self.bank.clear(slot)

    # Rows

    def take(self, arrivals: Sequence[tuple[int, Arrival]]) -> None:
        rows = [row for row, _ in arrivals]
        slots = [self._slot(arrival.adapter) for _, arrival in arrivals]
        if not any(slots) and not self._of_rows[rows].any():
            return
        self._of_rows[rows] = slots
        told = torch.tensor([rows, slots]).to(self._device, non_blocking=True)
        self.on_device[told[0]] = told[1].int()

    def _slot(self, digest: str) -> int:
        if digest and digest not in self._slots:
            raise EngineError(f"the adapter {digest[:12]} is not on the device")
        return self._slots.get(digest, 0)

    def of(self, rows: Sequence[int]) -> list[int]:
        return self._of_rows[list(rows)].tolist()  # type: ignore[no-any-return]

    def are_plain(self, chunks: Sequence[Chunk]) -> bool:
        """Steps of these can be recorded."""
        return all(self.bank.is_plain(slot) for slot in set(self.of([chunk.row for chunk in chunks])) if slot)

    # Steps

    def tell(self, chunks: Sequence[Chunk]) -> bool:
        """Tell the sublayers whose tokens come; whether any has an adapter."""
        slots = self._of_rows[[chunk.row for chunk in chunks]]
        self._is_adapted = bool(slots.any())
        if self._is_adapted:
            lengths = [chunk.length for chunk in chunks]
            self._tell(torch.from_numpy(np.repeat(slots, lengths)).to(self._device, non_blocking=True))
        else:
            self.step.tokens = None
        return self._is_adapted

    def tell_rows(self, rows: Tensor | None) -> None:
        """The same for scores of these rows, one each; none for a step without adapters."""
        if rows is None or not self._is_adapted:
            self.step.tokens = None
        else:
            self._tell(self.on_device[rows.long()])

    def record(self, rows: Tensor | None) -> None:
        """The same while a step is recorded, or played back: rows are on the device."""
        if rows is None:
            self.step.tokens = None
        else:
            self._tell(self.on_device[rows])

    def _tell(self, slots: Tensor) -> None:
        groups = None if slots.device.type == "cpu" else group_tokens(slots, self.num_slots + 1)
        self.step.tokens = TokenSlots(slots, groups)


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
            self._linears[path] = _replaced(model, path, lambda inner, s=shape: LoraLinear(inner, s.rows, step))
        for path, module in list(model.named_modules()):
            if isinstance(module, MixtureOfExperts):
                self._mixtures[path] = _replaced(model, path, lambda inner: LoraMixture(inner, step))
        for table in TABLES:
            if table == "embedding" or model.output is not None:
                self._tables[table] = _replaced(model, table, lambda inner: LoraTable(inner, step))
        if model.output is None:
            self._tables["output"] = self._tables["embedding"]

    def is_plain(self, slot: int) -> bool:
        return slot not in self._unplain

    def put(self, slot: int, adapter: Adapter) -> None:
        for name in adapter.experts:
            if name.rpartition(".experts")[0] not in self._mixtures:
                raise EngineError("adapters of experts that are dealt out to ranks are not served")
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
            for held in (table.lookups, table.outputs, table.embeddings, table.heads, table.factors):
                held.pop(slot, None)  # type: ignore[attr-defined]
        for mixture in self._mixtures.values():
            mixture.changes.pop(slot, None)
        self._unplain.discard(slot)

    def _put_linear(self, slot: int, linear: LoraLinear, changes: tuple[LowRank | None, ...]) -> None:
        given = [change for change in changes if change is not None]
        like = _like(linear.linear)
        rank, columns = max(change.rank for change in given), given[0].right.shape[1]
        a, b = self._room(linear, rank, columns, like)
        rank, first = b.shape[2], 0
        for number, (change, size) in enumerate(zip(changes, linear.sizes, strict=True)):
            if change is not None:
                left = change.left
                if change.scales is not None:
                    factors = change.scales / _norms(linear.linear, change, first, size)
                    self._factors(linear, like)[slot, first : first + size] = factors.to(like.dtype)
                    left = left * factors.to(left.device)[:, None]
                a[slot, number * rank : number * rank + change.rank].copy_(change.right, non_blocking=True)
                b[slot, first : first + size, : change.rank].copy_(left, non_blocking=True)
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
        table, left = self._tables[name], change.left
        device = _like(table.table).device
        if change.scales is not None:
            factors = change.scales / _norms(table.table, change, 0, len(left))
            table.factors[slot] = factors.to(device)
            left = left * factors.to(left.device)[:, None]
        pair = left.to(device), change.right.to(device)
        (table.lookups if name == "embedding" else table.outputs)[slot] = pair

    def _put_whole(self, slot: int, name: str, values: Tensor) -> None:
        table = self._tables[name]
        like = _like(table.table)
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


def _like(module: nn.Module) -> Tensor:
    """A number of the type a sublayer computes in, where it computes."""
    for name in ("weight", "scales"):
        parameter = getattr(module, name, None)
        if isinstance(parameter, Tensor) and parameter.dtype in (torch.float32, torch.bfloat16, torch.float16):
            if name == "weight":
                return parameter
    dtype = getattr(module, "dtype", None)
    device = next(module.parameters()).device
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.empty(0, dtype=dtype, device=device)


def _norms(module: nn.Module, change: LowRank, first: int, size: int) -> Tensor:
    """Lengths of the rows of W + BA, from what the sublayer makes of few rows: W itself may be packed.

    |w + ba|^2 = |w|^2 + 2 b (A w) + b (A A^T) b
    """
    like, columns = _like(module), change.right.shape[1]
    squares = sum(
        part.float().square().sum(0) for part in _images(module, torch.eye(columns, device=like.device), first, size)
    )
    right, left = change.right.to(like.device), change.left.to(like.device)
    crossed = torch.cat(list(_images(module, right, first, size)))
    inner = right.float() @ right.float().t()
    total = squares + 2 * (left * crossed.t().float()).sum(1) + ((left @ inner) * left).sum(1)
    return total.clamp(min=1e-12).sqrt()


def _images(module: nn.Module, rows: Tensor, first: int, size: int) -> Iterator[Tensor]:
    """What the matrix makes of some rows, without a bias."""
    dtype = _like(module).dtype
    weight = getattr(module, "weight", None)
    bias = getattr(module, "bias", None)
    for part in rows.split(IDENTITY_ROWS):
        if isinstance(weight, Tensor):
            yield part.float() @ weight[first : first + size].float().t()
        else:
            made = module.scores(part.to(dtype)) if not hasattr(module, "forward") else module(part.to(dtype))  # type: ignore[operator]
            yield (made if bias is None else made - bias)[:, first : first + size].float()
