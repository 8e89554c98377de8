"""Adapters of several ranks: each has its own part of every one, in slots of its own.

    first    says that a path is to be read; reads its part; hears from the others; says when it is laid down and removed
    others   read their part beside the steps, say what came of it at the store, and do as they are told between two steps

An adapter that one rank cannot read is refused for all of them.
"""

import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.errors import ModelFileError, PenstockError, RankLostError
from penstock.runtime.execution.adapters.slots import AdapterSlots
from penstock.runtime.execution.parallel.frames import AdapterWord, encode_word
from penstock.runtime.execution.parallel.world import World

LOOK_S = 0.002
PATIENCE_S = 300.0
"""How long a rank may take to read an adapter."""
KEPT_BYTES = 4 << 30
"""Of adapters that a rank has read and keeps; what is gone is read again when it is laid down."""


class LeadingAdapters:
    """The first rank's: where adapters of all of them lie, as the engine sees it."""

    def __init__(self, slots: AdapterSlots, world: World) -> None:
        self._slots = slots
        self._world = world
        self._num_asked = 0
        self._asked: dict[str, int] = {}
        """The number under which the others say what came of a path."""

    @property
    def num_slots(self) -> int:
        return self._slots.num_slots

    def expect(self, path: str) -> None:
        self._num_asked += 1
        self._asked[path] = self._num_asked
        self._world.broadcast(encode_word(AdapterWord("read", path, number=self._num_asked)))

    def read(self, path: str) -> Any:
        number = self._asked.pop(path)
        adapter = self._slots.read(path)
        for rank in range(1, self._world.place.ranks.num_ranks):
            digest, _, fault = self._hear(number, rank).partition(" ")
            if fault:
                raise ModelFileError(f"rank {rank} cannot read it: {fault}")
            if digest != adapter.digest:
                raise ModelFileError(
                    f"the adapter {path} is another one where rank {rank} runs; give all machines the same"
                )
        return adapter

    def _hear(self, number: int, rank: int) -> str:
        """What a rank said. The store is looked at now and then: who waits at it keeps others from asking."""
        store, key, end_s = self._world.store, _key(number, rank), time.monotonic() + PATIENCE_S
        while not store.check([key]):
            if time.monotonic() > end_s:
                raise ModelFileError(f"rank {rank} has not read it after {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
        said = store.get(key).decode()
        store.delete_key(key)
        return str(said)

    def place(self, adapter: Any) -> None:
        self._world.broadcast(encode_word(AdapterWord("place", adapter.path, adapter.digest)))
        self._slots.place(adapter)

    def remove(self, digest: str) -> None:
        self._world.broadcast(encode_word(AdapterWord("remove", "", digest)))
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

    def take(self, word: AdapterWord) -> None:
        if word.kind == "read":
            self._reading[word.path] = self._reader.submit(self._read, word)
        elif word.kind == "place":
            self._place(word)
        else:
            self._slots.remove(word.digest)

    def _read(self, word: AdapterWord) -> Any:
        key = _key(word.number, self._world.place.rank)
        try:
            adapter = self._slots.read(word.path)
        except Exception as error:
            said = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            self._world.store.set(key, f" {said}")
            raise
        self._world.store.set(key, adapter.digest)
        return adapter

    def _place(self, word: AdapterWord) -> None:
        reading = self._reading.pop(word.path, None)
        if reading is not None and reading.exception() is None:
            read = reading.result()
            self._kept[read.digest] = read
        if word.digest not in self._kept:
            self._kept[word.digest] = self._slots.read(word.path)
        adapter = self._kept[word.digest]
        if adapter.digest != word.digest:
            raise RankLostError(f"the adapter {word.path} has changed while it was served")
        self._kept.move_to_end(word.digest)
        self._slots.place(adapter)
        while len(self._kept) > 1 and sum(each.num_bytes for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def _key(number: int, rank: int) -> str:
    return f"adapter/{number}/{rank}"
