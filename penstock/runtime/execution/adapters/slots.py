"""Which adapter lies in which slot, and which slot each row has. Slot 0 is none.

What lies in a slot is a bank's to know: torch modules and native steps have one each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.core.batch import Arrival, Chunk
from penstock.runtime.execution.adapters.modules import ModuleBank
from penstock.runtime.execution.load.magnitudes import AddUp
from penstock.runtime.execution.load.mix import read_mix
from penstock.runtime.execution.native.adapters import NativeBank
from penstock.runtime.layers.adapted.step import AdapterStep, TokenSlots
from penstock.runtime.models.sharding import ModelShard
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.grouped.lora import tile_tokens

AdapterBank = ModuleBank | NativeBank
"""Where a model's sublayers, or its native steps, find adapters by slot."""

ReadFor = tuple[ModelSpec, int, ModelShard | None]
"""What adapters are read for: a model, up to a rank, and a rank's part of it where there are several."""


class AdapterSlots:
    """Which adapter lies in which slot, and which slot each row has. Belongs to the thread that launches steps."""

    def __init__(
        self,
        bank: AdapterBank,
        read_for: ReadFor,
        num_slots: int,
        num_rows: int,
        device: torch.device,
        step: AdapterStep,
    ) -> None:
        self.bank = bank
        self.num_slots = num_slots
        self.step = step
        self._read_for = read_for
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
        return self.bank.read(path, *self._read_for) or self.bank.prepare(read_mix(path, *self._read_for), add_up)

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
