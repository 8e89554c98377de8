"""Which adapter lies in which slot, and which slot each row has. Slot 0 is none.

What lies in a slot is a bank's to know: torch modules and native steps have one each.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.core.batch import Arrival, Chunk
from penstock.runtime.execution.load.adapters import Adapter
from penstock.runtime.execution.load.magnitudes import AddUp
from penstock.runtime.execution.load.mix import read_mix
from penstock.runtime.layers.adapted.step import AdapterStep, TokenSlots
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.grouped.lora import tile_tokens


class AdapterBank(Protocol):
    """Where a model's sublayers, or its native steps, find adapters by slot."""

    @property
    def places(self) -> Tensor | None:
        """int32 [slots, linears, 4]: where sublayers find their matrices in a slot, as `LoraBank` has them."""

    def read(self, path: str, spec: ModelSpec, max_rank: int, shard: ModelShard | None) -> Any:
        """An adapter made ready right from its files, from any thread; None where it has to be read and prepared."""

    def prepare(self, adapter: Adapter, add_up: AddUp | None = None) -> Any:
        """What can be done before there is a slot, from any thread: numbers as they will lie, DoRA's lengths found.

        It has an adapter's `digest`, `base`, `rank` and `num_bytes`."""

    def put(self, slot: int, adapter: Any) -> None: ...

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

    def expect(self, path: str) -> None:
        """A path is about to be read."""

    def read(self, path: str, add_up: AddUp | None = None) -> Any:
        """From any thread; ModelFileError says why an adapter is refused. `add_up` is asked where ranks have parts of a sum."""
        told = self._spec, self._max_rank, self._shard
        return self.bank.read(path, *told) or self.bank.prepare(read_mix(path, *told), add_up)

    @torch.inference_mode()
    def place(self, adapter: Any) -> None:
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

    @torch.inference_mode()
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
        inputs = torch.tensor([rows, slots]).to(self._device, non_blocking=True)
        self.on_device[inputs[0]] = inputs[1].int()

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

    def set_chunks(self, chunks: Sequence[Chunk]) -> bool:
        """Set whose tokens the sublayers compute next; whether any has an adapter."""
        slots = self._of_rows[[chunk.row for chunk in chunks]]
        self._is_adapted = bool(slots.any())
        if self._is_adapted:
            lengths = [chunk.length for chunk in chunks]
            self._set_tokens(torch.from_numpy(np.repeat(slots, lengths)).to(self._device, non_blocking=True))
        else:
            self.step.tokens = None
        return self._is_adapted

    def set_rows(self, rows: Tensor | None) -> None:
        """The same for scores of these rows, one each; none for a step without adapters."""
        if rows is None or not self._is_adapted:
            self.step.tokens = None
        else:
            self._set_tokens(self.on_device[rows.long()])

    def record(self, rows: Tensor | None) -> None:
        """The same while a step is recorded, or played back: rows are on the device."""
        if rows is None:
            self.step.tokens = None
        else:
            self._set_tokens(self.on_device[rows])

    def _set_tokens(self, slots: Tensor) -> None:
        places = self.bank.places
        tiles = None if places is None or slots.device.type == "cpu" else tile_tokens(slots, places)
        self.step.tokens = TokenSlots(tiles, slots)
