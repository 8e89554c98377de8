"""Blocks that others ask for, handed out by the engine's own thread: those published now, the others as they are computed.

A block is read only when every step that was under way when it was first seen has ended well and the pool still says the same
of it: what a failed step left behind is never sent. Time is the asking thread's business.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import Content
from penstock.runtime.core.runner import BlockCopy, BlockRunner, CopyingRunner
from penstock.runtime.engine.tiers.record import KVRecord

MAX_ENDED = 64
MAX_READ_BYTES = 128 << 20
"""Of blocks for one reader in one turn of the loop."""


class ReadBlocks(NamedTuple):
    """Blocks on their way out of the device, or out of it."""

    held: tuple[Content, ...]
    contents: Sequence[bytes | memoryview] = ()
    copy: BlockCopy | None = None

    def wait(self) -> tuple[KVRecord, ...]:
        """From any thread."""
        contents = self.contents if self.copy is None else self.copy.wait()
        return tuple(KVRecord(own.hash, own.tokens, kv) for own, kv in zip(self.held, contents, strict=True))


class HandedOut(NamedTuple):
    """News for a reader. After blocks, nothing comes until it reads on."""

    blocks: ReadBlocks | None = None
    is_expected: bool = False
    """The rest is being computed here."""
    is_over: bool = False
    """All was handed out, or the rest will not come."""


Reply = Callable[[HandedOut], None]
"""Called by the engine's thread; must not wait."""


class BlockRead(NamedTuple):
    """A reader asks for blocks by their hashes, the first first."""

    reader_id: int
    hashes: tuple[bytes, ...]
    reply: Reply


class ReadOn(NamedTuple):
    """A reader has passed on what it got, or has given up."""

    reader_id: int
    is_over: bool = False


@dataclass(slots=True)
class _BlockReader:
    hashes: tuple[bytes, ...]
    reply: Reply
    next: int = 0
    """The first block not handed out."""
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Blocks from there on that are published, with the number of steps launched when they were seen."""
    is_new: bool = True
    """It has not been told what there is."""
    is_waiting: bool = True
    """It has nothing in hand."""
    is_expected: bool = False


class BlockOffers:
    """Owned by the engine's thread."""

    def __init__(self, pool: BlockPool, runner: BlockRunner) -> None:
        self._pool = pool
        self._runner = runner
        self._copier = runner if isinstance(runner, CopyingRunner) else None
        self.num_handed_out = 0
        """Blocks."""
        self._readers: dict[int, _BlockReader] = {}
        self._expected: dict[int, bytes] = {}
        """Requests in progress, and the last block of each one's prompt."""
        self._ended: deque[bytes] = deque(maxlen=MAX_ENDED)
        """Last blocks of prompts that were in progress lately: what of them is not here will not come."""

    def expect(self, request_id: int, hashes: Sequence[bytes]) -> None:
        """A prompt is to be computed here."""
        if hashes:
            self._expected[request_id] = hashes[-1]

    def follow(self, deltas: Sequence[Delta]) -> None:
        """A prompt with a token drawn after it, or one that has ended, is not expected any more."""
        if self._expected:
            for delta in deltas:
                hash = self._expected.pop(delta.request_id, None)
                if hash is not None:
                    self._ended.append(hash)

    def take(self, message: BlockRead | ReadOn) -> None:
        if isinstance(message, BlockRead):
            self._readers[message.reader_id] = _BlockReader(message.hashes, message.reply)
        elif message.is_over:
            self._readers.pop(message.reader_id, None)
        elif message.reader_id in self._readers:
            self._readers[message.reader_id].is_new = self._readers[message.reader_id].is_waiting = True

    def turn(self, num_launched: int, num_landed: int) -> None:
        """Hand out what has become readable. To be called between steps, told how many were launched and have ended."""
        if not self._readers:
            return
        expected = set(self._expected.values())
        for reader_id, reader in tuple(self._readers.items()):
            self._see(reader, num_launched)
            if not reader.is_waiting:
                continue
            news = self._news(reader, num_landed, reader.hashes[-1] in expected)
            if news is not None:
                reader.is_new, reader.is_expected = False, news.is_expected
                reader.is_waiting = news.blocks is None
                reader.reply(news)
                if news.is_over:
                    del self._readers[reader_id]

    def _news(self, reader: _BlockReader, num_landed: int, is_expected: bool) -> HandedOut | None:
        blocks = self._read(reader, num_landed)
        # A prompt that is computed may have blocks whose step has not landed yet.
        was_expected = reader.is_expected or reader.hashes[-1] in self._ended
        is_given_up = was_expected and not is_expected and not reader.seen and blocks is None
        is_over = is_given_up or reader.next == len(reader.hashes)
        is_news = is_over or (reader.is_new and not reader.seen) or is_expected != reader.is_expected
        if blocks is None and not is_news:
            return None
        return HandedOut(blocks, is_expected or bool(reader.seen), is_over)

    def _see(self, reader: _BlockReader, num_launched: int) -> None:
        """In every turn, so that content which left and came back is seen as new."""
        hashes = reader.hashes[reader.next :]
        for place, ((seen, _), hash) in enumerate(zip(reader.seen, hashes)):
            if self._pool.block_of(hash) != seen:  # retracted or evicted since
                del reader.seen[place:]
                break
        for hash in reader.hashes[reader.next + len(reader.seen) :]:
            block = self._pool.block_of(hash)
            if block is None:
                break
            reader.seen.append((block, num_launched))

    def _read(self, reader: _BlockReader, num_landed: int) -> ReadBlocks | None:
        most = max(MAX_READ_BYTES // max(self._runner.block_bytes, 1), 1)
        blocks: list[int] = []
        for block, num_launched in reader.seen[:most]:
            if num_launched > num_landed:
                break
            blocks.append(block)
        if not blocks:
            return None
        _, contents, _ = self._pool.books
        held = tuple([content for block in blocks if (content := contents[block]) is not None])
        self.num_handed_out += len(blocks)
        reader.next += len(blocks)
        del reader.seen[: len(blocks)]
        if self._copier is None:
            return ReadBlocks(held, self._runner.read_blocks(blocks))
        return ReadBlocks(held, copy=self._copier.begin_read(blocks, is_fenced=True))
