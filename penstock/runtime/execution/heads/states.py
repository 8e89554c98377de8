"""The latest final hidden states of each row, as the steps of a runner leave them.

A runner hands them over only where a head reads them. A step that is launched again writes the same positions again; what lies
behind the first position of a chunk is forgotten, since it was computed from drafts that did not come true.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk

KEPT, ROOM = 256, 320
"""States of a row that are kept at least, and places for them: they are moved together when the places are used up."""
MAX_ROWS = 16
"""Rows whose states are kept, those that computed last: with more of them a step is full without guesses."""


class RowStates:
    """A run of one row's states: that of position `begin` stands first."""

    __slots__ = ("begin", "count", "states")

    def __init__(self, hidden_size: int, device: torch.device) -> None:
        self.states = torch.empty((ROOM, hidden_size), dtype=torch.float32, device=device)
        self.begin = self.count = 0

    @property
    def end(self) -> int:
        return self.begin + self.count

    def put(self, start: int, states: Tensor) -> None:
        if not self.begin <= start <= self.end or len(states) > KEPT:
            skipped = max(len(states) - KEPT, 0)
            self.begin, self.count, states = start + skipped, 0, states[skipped:]
            start = self.begin
        place = start - self.begin
        if place + len(states) > ROOM:
            dropped = place + len(states) - KEPT
            self.states[: place - dropped] = self.states[dropped:place].clone()
            self.begin, place = self.begin + dropped, place - dropped
        self.states[place : place + len(states)] = states
        self.count = place + len(states)


class StateSink(Protocol):
    """Where a runner leaves hidden states; they are written over by the next step."""

    def put(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        """A step: the states of all its chunks, one after another."""


@dataclass(frozen=True, slots=True)
class TextStates:
    """All states of one text, whatever the row: for trying heads on what is known."""

    _states: Tensor

    def begin(self, row: int) -> int | None:
        return 0

    def at(self, row: int, start: int, stop: int) -> Tensor | None:
        return self._states[start:stop] if 0 <= start <= stop <= len(self._states) else None


class StateStore:
    def __init__(self, hidden_size: int, device: torch.device) -> None:
        self._hidden_size = hidden_size
        self._device = device
        self._rows: OrderedDict[int, RowStates] = OrderedDict()
        """The one that computed last stands last."""

    @torch.inference_mode()
    def put(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        """Take in a step: the states of all its chunks, one after another."""
        place = 0
        for chunk in chunks:
            row = self._row(chunk.row)
            if chunk.arrival is not None:
                row.begin = row.count = 0
            row.put(chunk.start, hidden[place : place + chunk.length])
            place += chunk.length

    def begin(self, row: int) -> int | None:
        """The first position whose state is kept."""
        kept = self._rows.get(row)
        return None if kept is None or not kept.count else kept.begin

    def at(self, row: int, start: int, stop: int) -> Tensor | None:
        """States of some positions; None unless all are there. The next step writes over them."""
        kept = self._rows.get(row)
        if kept is None or start < kept.begin or stop > kept.end:
            return None
        return kept.states[start - kept.begin : stop - kept.begin]

    def _row(self, row: int) -> RowStates:
        kept = self._rows.get(row)
        if kept is None:
            if len(self._rows) >= MAX_ROWS:
                _, kept = self._rows.popitem(last=False)
                kept.begin = kept.count = 0
            else:
                kept = RowStates(self._hidden_size, self._device)
            self._rows[row] = kept
        else:
            self._rows.move_to_end(row)
        return kept


StateSource = StateStore | TextStates
"""Where heads find hidden states."""
