"""Requests with an adapter, held until it lies on the device. The scheduler sees them afterwards, and knows nothing of this.

    path -> read (another thread, kept on the host) -> laid in a slot (between two steps) -> its requests enter

A slot whose adapter nobody uses goes to the next that waits, the least recently used first. Where all are used and somebody
waits, one is drained: its new requests queue behind those that wait, so that no adapter is kept out for ever.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request, mix_parts

HOST_BYTES = 4 << 30
"""Of adapters that were read and lie in no slot; those used longest ago are read again when they are asked for."""


class AdapterHost(Protocol):
    """Where adapters lie. All but `read` belongs to the thread that launches steps."""

    @property
    def num_slots(self) -> int: ...

    def expect(self, path: str) -> None:
        """A path is about to be read, here and wherever else parts of the model are."""

    def read(self, path: str) -> Any:
        """An adapter with `digest`, `rank`, `num_bytes` and `base`; from any thread. Raises PenstockError if it is refused."""

    def place(self, adapter: Any) -> None: ...

    def remove(self, digest: str) -> None: ...


class AdapterRead(NamedTuple):
    """What came of reading an adapter."""

    path: str
    adapter: Any
    error: str
    is_ours: bool = False
    """The fault is not the adapter's."""


class AdapterOrder(NamedTuple):
    """Asked by an operator: read an adapter now, anew if it was read before; or forget it once nobody uses it."""

    order_id: int
    path: str
    is_unload: bool = False


class AdapterFacts(NamedTuple):
    """What is known of an adapter that was read."""

    path: str
    digest: str
    rank: int
    num_bytes: int
    base: str


class AdapterAnswer(NamedTuple):
    """What came of an order."""

    order_id: int
    error: str = ""
    facts: AdapterFacts | None = None


class AdapterCounts(NamedTuple):
    """Counted since the start, and as it is now."""

    num_read: int = 0
    num_placed: int = 0
    num_evicted: int = 0
    num_waiting: int = 0
    """Requests that wait for their adapter."""
    resident: tuple[str, ...] = ()
    """Paths of adapters on the device."""


@dataclass(slots=True)
class Entry:
    """One path. `adapter` is what it held when it was last read."""

    path: str
    adapter: Any = None
    num_bytes: int = 0
    is_reading: bool = False
    waiting: deque[Request] = field(default_factory=deque)
    orders: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PlacedAdapter:
    """An adapter in a slot."""

    adapter: Any
    path: str
    num_users: int = 0
    """Requests that entered and have not ended."""
    is_draining: bool = False


class Entrance(NamedTuple):
    """Requests that may enter now, and those that are refused, each with the reason."""

    entering: tuple[Request, ...] = ()
    refused: tuple[tuple[Request, str, bool], ...] = ()


NOBODY = Entrance()


@dataclass(slots=True)
class AdapterGate:
    """Belongs to the engine's thread. `_report` puts what was read into the engine's inbox, from any thread."""

    _host: AdapterHost
    _report: Callable[[AdapterRead], None]
    _executor: Executor | None = None
    _entries: dict[str, Entry] = field(default_factory=dict)
    _residents: OrderedDict[str, PlacedAdapter] = field(default_factory=OrderedDict)
    """By digest, the least recently used first."""
    _queue: deque[str] = field(default_factory=deque)
    """Paths that were read and wait for a slot, the first to come first."""
    _kept: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Paths in the order of their last use."""
    _using: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Digest and unended choices of every request that entered."""
    _answers: list[AdapterAnswer] = field(default_factory=list)
    _unloading: dict[str, list[int]] = field(default_factory=dict)
    """Orders to forget, by digest, that wait for its users."""
    _counts: AdapterCounts = field(default_factory=AdapterCounts)

    # Queries

    @property
    def is_waiting(self) -> bool:
        """Something is being read, or an order is not answered."""
        return any(entry.is_reading for entry in self._entries.values()) or bool(self._answers)

    @property
    def counts(self) -> AdapterCounts:
        num_waiting = sum(len(entry.waiting) for entry in self._entries.values())
        resident = tuple(resident.path for resident in self._residents.values())
        return self._counts._replace(num_waiting=num_waiting, resident=resident)

    def answers(self) -> tuple[AdapterAnswer, ...]:
        """To orders that were carried out since this was last asked."""
        answers, self._answers = tuple(self._answers), []
        return answers

    # Requests

    def ask(self, request: Request) -> Entrance:
        """A request for the adapter at its path: it enters now, or waits."""
        entry = self._entries.setdefault(request.adapter, Entry(request.adapter))
        entry.waiting.append(request)
        if entry.adapter is None:
            self._read(entry)
            return NOBODY
        return self._let_in(entry)

    def take(self, read: AdapterRead) -> Entrance:
        """An adapter was read, or refused: with it all that wait for it."""
        entry = self._entries.get(read.path)
        if entry is None or not entry.is_reading:
            return NOBODY
        entry.is_reading = False
        facts = None if read.adapter is None else facts_of(read.path, read.adapter)
        self._answers += [AdapterAnswer(order, read.error, facts) for order in entry.orders]
        entry.orders.clear()
        if read.adapter is None:
            refused = tuple((request, read.error, read.is_ours) for request in entry.waiting)
            if entry.adapter is None:
                del self._entries[read.path]
            entry.waiting.clear()
            return Entrance((), refused)
        entry.adapter, entry.num_bytes = read.adapter, read.adapter.num_bytes
        self._counts = self._counts._replace(num_read=self._counts.num_read + 1)
        return self._let_in(entry)

    def cancel(self, request_id: int) -> Request | None:
        """Forget a request that waits; None if there is no such request."""
        for entry in self._entries.values():
            for request in entry.waiting:
                if request.request_id == request_id:
                    entry.waiting.remove(request)
                    return request
        return None

    def follow(self, deltas: tuple[Delta, ...]) -> Entrance:
        """Requests have ended: who may enter in their place."""
        is_freed = False
        for delta in deltas:
            if delta.finish is not None and delta.request_id in self._using:
                is_freed = self._leave(delta.request_id) or is_freed
        return self._advance() if is_freed else NOBODY

    # Orders

    def order(self, order: AdapterOrder) -> Entrance:
        entry = self._entries.get(order.path)
        if not order.is_unload:
            entry = entry or self._entries.setdefault(order.path, Entry(order.path))
            entry.orders.append(order.order_id)
            self._read(entry)
            self._forget_mixes(order.path)
            return NOBODY
        if entry is None or entry.adapter is None:
            self._answers.append(AdapterAnswer(order.order_id))
            return NOBODY
        digest = entry.adapter.digest
        resident = self._residents.get(digest)
        if not entry.waiting and not entry.is_reading:
            del self._entries[order.path]
            self._kept.pop(order.path, None)
        if resident is not None and resident.num_users:
            self._unloading.setdefault(digest, []).append(order.order_id)
            return NOBODY
        self._answers.append(AdapterAnswer(order.order_id))
        if resident is not None:
            self._evict(digest)
        return self._advance()

    def _forget_mixes(self, path: str) -> None:
        """Adapters together with one that is read anew are read anew too when they are next asked for."""
        for other in [other for other in self._entries if other != path and path in dict(mix_parts(other))]:
            if not self._entries[other].waiting and not self._entries[other].is_reading:
                del self._entries[other]
                self._kept.pop(other, None)

    # Slots

    def _read(self, entry: Entry) -> None:
        if entry.is_reading:
            return
        entry.is_reading = True
        self._host.expect(entry.path)
        if self._executor is None:
            self._report(self._reading(entry.path))
        else:
            self._executor.submit(lambda: self._report(self._reading(entry.path)))

    def _reading(self, path: str) -> AdapterRead:
        try:
            return AdapterRead(path, self._host.read(path), "")
        except PenstockError as error:
            return AdapterRead(path, None, str(error))
        except Exception as error:  # a fault of an adapter is a fault of its own requests
            return AdapterRead(path, None, f"the adapter could not be read: {type(error).__name__}: {error}", True)

    def _let_in(self, entry: Entry) -> Entrance:
        """Requests for an adapter that was read, if it lies in a slot that takes new requests or a slot is free."""
        resident = self._residents.get(entry.adapter.digest)
        if resident is not None and not resident.is_draining:
            return self._enter(entry, resident)
        if entry.path not in self._queue:
            self._queue.append(entry.path)
        return self._advance()

    def _advance(self) -> Entrance:
        """Give slots to those that wait, in their order; where none can be had, have as many drained as wait."""
        entering: tuple[Request, ...] = ()
        refused: tuple[tuple[Request, str, bool], ...] = ()
        while self._queue:
            entry = self._entries.get(self._queue[0])
            if entry is None or not entry.waiting:
                self._queue.popleft()
                continue
            resident = self._residents.get(entry.adapter.digest)
            if resident is None or (resident.is_draining and not resident.num_users):
                error = self._place(entry, resident)
                if error is None:
                    break
                resident = self._residents.get(entry.adapter.digest)
                if resident is None:
                    refused += tuple((request, error, True) for request in entry.waiting)
                    entry.waiting.clear()
                    continue
            elif resident.is_draining:
                break
            self._queue.popleft()
            entering += self._enter(entry, resident).entering
        self._drain()
        return Entrance(entering, refused)

    def _place(self, entry: Entry, resident: PlacedAdapter | None) -> str | None:
        """Lay an adapter into a slot; empty if it lies there, None if there is no slot, else why it could not be laid."""
        if resident is not None:
            resident.is_draining = False
            return ""
        if len(self._residents) >= self._host.num_slots:
            idle = next((digest for digest, one in self._residents.items() if not one.num_users), None)
            if idle is None:
                return None
            self._evict(idle)
        try:
            self._host.place(entry.adapter)
        except Exception as error:
            return f"the adapter could not be laid on the device: {type(error).__name__}: {error}"
        self._residents[entry.adapter.digest] = PlacedAdapter(entry.adapter, entry.path)
        self._counts = self._counts._replace(num_placed=self._counts.num_placed + 1)
        return ""

    def _enter(self, entry: Entry, resident: PlacedAdapter) -> Entrance:
        digest = resident.adapter.digest
        self._residents.move_to_end(digest)
        self._use(entry)
        entering = tuple(replace(request, adapter=digest) for request in entry.waiting)
        entry.waiting.clear()
        for request in entering:
            self._using[request.request_id] = digest, request.params.n
        resident.num_users += len(entering)
        return Entrance(entering)

    def _leave(self, request_id: int) -> bool:
        """A choice has ended; whether a slot may be free for it."""
        digest, num_left = self._using[request_id]
        if num_left > 1:
            self._using[request_id] = digest, num_left - 1
            return False
        del self._using[request_id]
        resident = self._residents[digest]
        resident.num_users -= 1
        if resident.num_users:
            return False
        for order in self._unloading.pop(digest, ()):
            self._answers.append(AdapterAnswer(order))
            if digest in self._residents:
                self._evict(digest)
        return True

    def _evict(self, digest: str) -> None:
        del self._residents[digest]
        self._host.remove(digest)
        self._counts = self._counts._replace(num_evicted=self._counts.num_evicted + 1)

    def _drain(self) -> None:
        """As many residents as wait for a slot take no new requests: those with the fewest users, soonest free."""
        num_waiting = len(self._queue)
        draining = [one for one in self._residents.values() if one.is_draining]
        if not num_waiting:
            for one in draining:
                one.is_draining = False
            return
        others = sorted((one for one in self._residents.values() if not one.is_draining), key=lambda one: one.num_users)
        for one in others[: max(0, num_waiting - len(draining))]:
            one.is_draining = True

    def _use(self, entry: Entry) -> None:
        """The host keeps what was used last, as far as there is room."""
        self._kept[entry.path] = None
        self._kept.move_to_end(entry.path)
        total = sum(self._entries[path].num_bytes for path in self._kept if path in self._entries)
        for path in list(self._kept):
            one = self._entries.get(path)
            if total <= HOST_BYTES or one is None or one is entry:
                continue
            if one.adapter.digest not in self._residents and not one.waiting and not one.is_reading:
                total -= one.num_bytes
                del self._entries[path], self._kept[path]


def facts_of(path: str, adapter: Any) -> AdapterFacts:
    return AdapterFacts(path, adapter.digest, adapter.rank, adapter.num_bytes, adapter.base)
