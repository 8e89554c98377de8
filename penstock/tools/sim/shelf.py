"""Adapters on a simulated device: which lie there, and when one that does not will."""

from collections import OrderedDict
from typing import NamedTuple


class ShelfRoom(NamedTuple):
    """What every replica has room for."""

    num_slots: int
    load_s: float
    """Until an adapter that is not there is."""


class AdapterShelf:
    """One replica's slots. The least recently asked for leaves, as in the engine where nobody uses it."""

    def __init__(self, room: ShelfRoom) -> None:
        self._room = room
        self._ready_s: OrderedDict[str, float] = OrderedDict()
        self.num_loads = 0

    def ask(self, adapter: str, now: float) -> float:
        """When a request for the adapter may enter. One is read at a time."""
        if not adapter:
            return now
        if adapter not in self._ready_s:
            begin_s = max((now, *self._ready_s.values()))
            if len(self._ready_s) >= self._room.num_slots:
                self._ready_s.popitem(last=False)
            self._ready_s[adapter] = begin_s + self._room.load_s
            self.num_loads += 1
        self._ready_s.move_to_end(adapter)
        return max(now, self._ready_s[adapter])
