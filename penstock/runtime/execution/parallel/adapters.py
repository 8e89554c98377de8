"""Adapters of several ranks: each has its own part of every one, in slots of its own.

    first    says that a path is to be read; reads its part; hears from the others; says when it is laid down and removed
    others   read their part beside the steps, say what came of it at the store, and do as they are told between two steps

An adapter that one rank cannot read is refused for all of them.
"""

import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ModelFileError, PenstockError, RankLostError
from penstock.runtime.execution.adapters.slots import AdapterSlots
from penstock.runtime.execution.parallel.frames import AdapterWord, Announcement, encode
from penstock.runtime.execution.parallel.world import World

LOOK_S = 0.002
PATIENCE_S = 300.0
"""How long a rank may take to read an adapter."""
KEPT_SUMS = 32
"""Adapters that were read since whose sums the store still has."""
MAX_TOTALS = 1024
KEPT_BYTES = 4 << 30
"""Of adapters that a rank has read and keeps; what is gone is read again when it is laid down."""


class LeadingAdapters:
    """The first rank's: where adapters of all of them lie, as the engine sees it."""

    def __init__(self, slots: AdapterSlots, world: World) -> None:
        self._slots = slots
        self.num_slots = slots.num_slots
        self._world = world
        self._num_asked = 0
        self._asked: dict[str, int] = {}
        """The number under which the others say what came of a path."""

    def expect(self, path: str) -> None:
        self._num_asked += 1
        self._asked[path] = self._num_asked
        self._world.broadcast(encode(Announcement(adapter=AdapterWord("read", path, number=self._num_asked))))

    def read(self, path: str) -> Any:
        number = self._asked.pop(path)
        forget_sums(self._world, number - KEPT_SUMS)
        adapter = RankSums(self._world, number).read(self._slots, path)
        for rank in range(1, self._world.place.ranks.num_ranks):
            key = _key(number, rank)
            digest, _, fault = _receive(self._world, key, rank).decode().partition(" ")
            self._world.store.delete_key(key)
            if fault:
                raise ModelFileError(f"rank {rank} cannot read it: {fault}")
            if digest != adapter.digest:
                raise ModelFileError(
                    f"the adapter {path} is another one where rank {rank} runs; give all machines the same"
                )
        return adapter

    def place(self, adapter: Any) -> None:
        self._world.broadcast(encode(Announcement(adapter=AdapterWord("place", adapter.path, adapter.digest))))
        self._slots.place(adapter)

    def remove(self, digest: str) -> None:
        self._world.broadcast(encode(Announcement(adapter=AdapterWord("remove", "", digest))))
        self._slots.remove(digest)


class FollowingAdapters:
    """Another rank's. `take` belongs to the thread that computes steps."""

    def __init__(self, slots: AdapterSlots, world: World) -> None:
        self._slots = slots
        self._world = world
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapter")
        self._reading: dict[str, Future[Any]] = {}
        """The newest reading of a path."""
        self._kept: OrderedDict[str, Any] = OrderedDict()
        """By digest, the least recently used first."""
        self._totals: dict[str, Tensor] = {}
        """What ranks have added up for a DoRA, by digest: a few numbers for each row of two matrices a layer."""

    def take(self, word: AdapterWord) -> None:
        if word.kind == "read":
            self._reading[word.path] = self._reader.submit(self._read, word)
        elif word.kind == "place":
            self._place(word)
        else:
            self._slots.remove(word.digest)

    def _read(self, word: AdapterWord) -> Any:
        key = _key(word.number, self._world.place.rank)
        sums = RankSums(self._world, word.number)
        try:
            adapter = sums.read(self._slots, word.path)
        except Exception as error:
            said = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            self._world.store.set(key, f" {said}")
            raise
        if sums.total is not None:
            self._totals[adapter.digest] = sums.total
            while len(self._totals) > MAX_TOTALS:
                del self._totals[next(iter(self._totals))]
        self._world.store.set(key, adapter.digest)
        return adapter

    def _place(self, word: AdapterWord) -> None:
        reading = self._reading.pop(word.path, None)
        if reading is not None and reading.exception() is None:
            read = reading.result()
            self._kept[read.digest] = read
        if word.digest not in self._kept:
            self._kept[word.digest] = self._slots.read(word.path, lambda own: self._total(word.digest))
        adapter = self._kept[word.digest]
        if adapter.digest != word.digest:
            raise RankLostError(f"the adapter {word.path} has changed while it was served")
        self._kept.move_to_end(word.digest)
        self._slots.place(adapter)
        while len(self._kept) > 1 and sum(each.num_bytes for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _total(self, digest: str) -> Tensor:
        if digest not in self._totals:
            raise RankLostError(f"the adapter {digest[:12]} was read too long ago to be laid down")
        return self._totals[digest]


class RankSums:
    """What tensor ranks have parts of, added up at the store: squared lengths of rows that a DoRA needs, when it is read."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.total: Tensor | None = None
        """What was added up, if something was."""

    def read(self, slots: AdapterSlots, path: str) -> Any:
        """An adapter; where it cannot be read, those that wait for this rank's part hear of it."""
        try:
            return slots.read(path, self._add_up)
        except BaseException:
            self._send(b"")
            raise

    def _add_up(self, own: Tensor) -> Tensor:
        place = self._world.place
        first = place.rank - place.tensor_index
        self._send(own.float().contiguous().numpy().tobytes())
        peers = range(first, first + place.ranks.tensor)
        parts = [_receive(self._world, _sums_key(self._number, rank), rank) for rank in peers]
        if any(len(part) != own.numel() * 4 for part in parts):
            raise ModelFileError("another rank cannot read it")
        self.total = torch.stack([torch.frombuffer(bytearray(part), dtype=torch.float32) for part in parts]).sum(0)
        return self.total

    def _send(self, part: bytes) -> None:
        key = _sums_key(self._number, self._world.place.rank)
        self._world.store.set(key, part)  # type: ignore[arg-type]  # it takes both


def forget_sums(world: World, number: int) -> None:
    """Of an adapter that was read long ago."""
    for rank in range(world.place.ranks.num_ranks if number > 0 else 0):
        world.store.delete_key(_sums_key(number, rank))


def _key(number: int, rank: int) -> str:
    return f"adapter/{number}/{rank}"


def _sums_key(number: int, rank: int) -> str:
    return f"{_key(number, rank)}/sums"


def _receive(world: World, key: str, rank: int) -> bytes:
    """What a rank said. The store is looked at now and then: who waits at it keeps others from asking."""
    end_s = time.monotonic() + PATIENCE_S
    while not world.store.check([key]):
        if time.monotonic() > end_s:
            raise ModelFileError(f"rank {rank} has not read it after {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
    return bytes(world.store.get(key))
