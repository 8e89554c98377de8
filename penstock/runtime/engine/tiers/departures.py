"""Blocks on their way out of the device: which are worth a copy, when it is made, and whether it can be trusted.

    asked for twice     on the second look, and with a session's end: copied beside the steps, `leaving` in the pool until the
                        copy is over
    about to be taken   likewise the oldest cached blocks that are worth it, once few others are left
    being taken         a block that nobody copied in time: read before the next step is launched, which may write over it

A copy holds what steps launched before it have written. Should one of those fail, every copy made since is dropped.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import Content
from penstock.runtime.core.runner import BlockCopy, BlockRunner, CopyingRunner
from penstock.runtime.engine.tiers.news import LeftBlocks
from penstock.runtime.engine.tiers.policy import Ghosts
from penstock.runtime.engine.tiers.record import KVRecord
from penstock.runtime.engine.tiers.store import TierStore

COPIED_AT_ONCE = 64
"""Blocks of a copy beside steps: pieces large enough for the full rate, small enough to be over soon."""
MAX_COPIES = 2
"""Beside steps, at a time."""
LOW_FRACTION = 1 / 8
"""Of the pool: with fewer blocks than this free, the oldest cached ones are copied ahead."""
MAX_WANTED = 1 << 16
MAX_FENCED = 256
"""Blocks that are being taken and copied for one step. Of more, those nearest to their prompts' beginnings: without them the
others are of no use."""


class OutboundBlocks(NamedTuple):
    blocks: tuple[int, ...]
    contents: tuple[Content, ...]
    is_ahead: bool
    """The blocks are `leaving`; else they were taken when the copy began."""


@dataclass
class Departures:
    """Belongs to the engine's thread; `_waiter` waits for copies."""

    _pool: BlockPool
    _runner: BlockRunner
    _waiter: Executor
    _store: TierStore
    _keeps_all: bool
    ghosts: Ghosts = field(default_factory=Ghosts)
    _wanted: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _taken: list[tuple[int, Content]] = field(default_factory=list)
    _queue: OrderedDict[int, Content] = field(default_factory=OrderedDict)
    """Blocks to be copied beside steps."""
    _under_way: dict[int, OutboundBlocks] = field(default_factory=dict)
    _doubtful: set[int] = field(default_factory=set)
    """Copies that began before a step failed."""
    _recent: deque[tuple[int, bytes]] = field(default_factory=deque)
    """What was kept, by the step before which it was read."""
    step: int = 0
    """The one that is planned, or was last."""
    _number: int = 0

    def __post_init__(self) -> None:
        self._copier = self._runner if isinstance(self._runner, CopyingRunner) else None
        self.put: Callable[[Any], object] = self.take
        """Brings news of a copy to the engine's thread."""
        self._pool.on_evict = self._evict

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    def want(self, hashes: Iterable[bytes]) -> None:
        """Content that is worth a copy before anybody has asked for it twice: of a session, a pin, a preempted sequence."""
        for hash in hashes:
            self._wanted[hash] = None
            self._wanted.move_to_end(hash)
        while len(self._wanted) > MAX_WANTED:
            self._wanted.popitem(last=False)

    def look(self, blocks: Iterable[int], hashes: Iterable[bytes]) -> None:
        """A prompt has these hashes and begins with these blocks: what is asked for a second time is worth a copy."""
        hashes = list(hashes)
        self.want([hash for hash in hashes if hash in self.ghosts])
        for hash in hashes:
            self.ghosts.note(hash)
        _, contents, _ = self._pool.books
        for block, hash in zip(blocks, hashes):
            content = contents[block]
            if self._copier is not None and content is not None and self._is_worth(hash):
                self._queue[block] = content
        while len(self._queue) > MAX_WANTED:
            self._queue.popitem(last=False)

    def _is_worth(self, hash: bytes) -> bool:
        return (self._keeps_all or hash in self._wanted) and hash not in self._store

    def _evict(self, block: int, content: Content) -> None:
        """A cached block is being taken; until the next launch its content is still there."""
        if self._is_worth(content.hash):
            self._taken.append((block, content))

    def copy_out(self, step: int, *, are_sound: bool = True) -> None:
        """To be called between a plan and its launch. While a step is under way that could not be started, what its sequences
        were to write may be missing: nothing is kept."""
        self.step = step
        taken, self._taken = self._taken, []
        if not are_sound:
            return
        if taken and self._copier is not None:
            self._begin(self._copier, taken[-MAX_FENCED:], is_ahead=False)
        elif taken:
            contents = self._runner.read_blocks([block for block, _ in taken])
            self._remember(
                [KVRecord(held.hash, held.tokens, kv) for (_, held), kv in zip(taken, contents, strict=True)]
            )
        if self._copier is not None and len(self._under_way) < MAX_COPIES:
            self._copy_ahead(self._copier)

    def copy_out_now(self) -> None:
        """Blocks were taken outside of a plan."""
        self.copy_out(self.step)

    def _copy_ahead(self, copier: CopyingRunner) -> None:
        pool, (_, contents, _) = self._pool, self._pool.books
        if pool.num_unused > pool.num_blocks * LOW_FRACTION:
            return  # nothing has to leave
        chosen: dict[int, Content] = {}
        while self._queue and len(chosen) < COPIED_AT_ONCE:
            block, content = self._queue.popitem(last=False)
            if contents[block] is content and block not in pool.leaving and self._is_worth(content.hash):
                chosen[block] = content
        if not chosen:
            chosen = {block: held for block, held in pool.oldest(COPIED_AT_ONCE) if self._is_worth(held.hash)}
        if chosen:
            self._begin(copier, list(chosen.items()), is_ahead=True)

    def _begin(self, copier: CopyingRunner, held: list[tuple[int, Content]], *, is_ahead: bool) -> None:
        blocks = tuple([block for block, _ in held])
        copy = copier.begin_read(blocks, is_fenced=not is_ahead)
        if is_ahead:
            for block in blocks:
                self._pool.leave(block)
        self._number += 1
        self._under_way[self._number] = OutboundBlocks(blocks, tuple([content for _, content in held]), is_ahead)
        self._waiter.submit(self._wait, self._number, copy)

    def _wait(self, number: int, copy: BlockCopy) -> None:
        try:
            contents = tuple(copy.wait())
        except Exception:
            contents = ()
        self.put(LeftBlocks(number, contents))

    def take(self, left: LeftBlocks) -> bool:
        """A copy is over; False if it failed."""
        departure = self._under_way.pop(left.number)
        held: list[Content | None] = list(departure.contents)
        if departure.is_ahead:
            held = [self._pool.stay(block) for block in departure.blocks]
        if left.number in self._doubtful:
            self._doubtful.discard(left.number)
        elif left.contents:
            pairs = zip(held, left.contents, strict=True)
            self._remember([KVRecord(own.hash, own.tokens, kv) for own, kv in pairs if own is not None])
        return bool(left.contents)

    def _remember(self, records: list[KVRecord]) -> None:
        self._recent.extend((self.step, record.hash) for record in records)
        for record in records:
            self._wanted.pop(record.hash, None)
        self._store.count(stored_blocks=len(records))
        self._store.keep(records)

    def settle(self, step: int) -> None:
        """A step is over: what was read before the next is as it should be."""
        while self._recent and self._recent[0][0] <= step + 1:
            self._recent.popleft()

    def distrust(self) -> None:
        """A step failed: what it was to write may have been copied since."""
        self._doubtful.update(self._under_way)
        self._store.drop([hash for _, hash in self._recent])
        self._recent.clear()
