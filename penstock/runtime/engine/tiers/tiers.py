"""Joins the pool to the tiers: blocks about to be taken are copied out, blocks that a prompt begins with are copied in.

    take of a cached block  -> leaving: its bytes are read before the next step is launched, which may write over them
    a request that arrives  -> what the device lacks and a tier has is read beside the loop and verified; then its blocks are
                               adopted by the pool and written, before any step that could read them is launched

Both happen on the loop's thread between two steps, in the order of the device's own work, so a block is never read before it
is filled and never filled while it is read. Disk and checksums belong to a thread of their own.
"""

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import Content, Holding, Namespace, packed
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import BlockRunner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.peers.counts import FetchEnd
from penstock.runtime.engine.peers.exchange import PeerExchange
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.policy import Ghosts, Rates
from penstock.runtime.engine.tiers.record import KVRecord, key_of

LEAST_BLOCKS = 2
"""Fewer are computed at once."""


class TierCounts(NamedTuple):
    """Since the start; bytes are those of records there now."""

    stored_blocks: int = 0
    loaded_blocks: int = 0
    """Blocks that came back to the device."""
    declined_blocks: int = 0
    """Blocks that a tier had and that were computed all the same: that was faster."""
    faults: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0


class FetchedBlocks(NamedTuple):
    """A request whose records have been read, as far as they were there and sound."""

    request: Request
    first: int
    """Number of the first of its blocks that they are for."""
    records: tuple[KVRecord, ...]
    num_bytes: int = 0
    """Asked of the disk."""
    is_last: bool = True
    """Nothing more comes: the request is scheduled."""
    end: FetchEnd | None = None
    """How the fetch ended, where a peer was asked."""
    is_moved: bool = False
    """A peer computed them for this request."""


class KVTiers:
    """Owned by the engine's thread; `reader` reads and writes the disk."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: BlockRunner,
        format: bytes,
        reader: Executor,
        *,
        host: HostTier,
        disk: DiskTier | None,
        keeps_all: bool = False,
        peers: PeerExchange | None = None,
    ) -> None:
        """With `keeps_all`, blocks are kept that no prompt has asked for twice."""
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.pool
        self._runner = runner
        self._format = format
        self._reader = reader
        self._host = host
        self._disk = disk
        self._keeps_all = keeps_all
        self._ghosts = Ghosts()
        self.rates = Rates()
        self._leaving: list[tuple[int, bytes, bytes]] = []
        """Blocks that were taken, with the hashes and tokens of what they held until now."""
        self._fetching: dict[int, Request] = {}
        self._waiting_bytes = 0
        self._counts = TierCounts()
        self.peers = peers
        """Other engines, which fetch blocks here and have some of ours; None where there are none."""
        if host.max_bytes or disk is not None:
            self._pool.on_evict = self._leave

    @property
    def is_fetching(self) -> bool:
        return bool(self._fetching)

    @property
    def counts(self) -> TierCounts:
        disk = self._disk
        return self._counts._replace(
            host_bytes=self._host.num_bytes,
            disk_bytes=0 if disk is None else disk.num_bytes,
            faults=self._counts.faults + (0 if disk is None else disk.num_faults),
        )

    # Out

    def _leave(self, block: int, content: Content) -> None:
        """A cached block is being taken; until the next launch its content is still there."""
        is_worth = self._keeps_all or content.hash in self._ghosts
        self._ghosts.note(content.hash)
        if is_worth and not self._has(key_of(self._format, content.hash)):
            self._leaving.append((block, content.hash, content.tokens))

    def copy_out(self, *, are_sound: bool = True) -> None:
        """Read the blocks that are leaving. To be called between a plan and its launch.

        While a step is under way that could not be started, what its sequences were to write may be missing: nothing is kept.
        """
        leaving, self._leaving = self._leaving, []
        if leaving and are_sound:
            self._keep(leaving)

    def _keep(self, blocks: list[tuple[int, bytes, bytes]]) -> None:
        contents = self._runner.read_blocks([block for block, _, _ in blocks])
        left: list[tuple[bytes, KVRecord]] = []
        for (_, hash, tokens), kv in zip(blocks, contents, strict=True):
            left += self._host.put(key_of(self._format, hash), KVRecord(hash, tokens, kv))
        self._counts = self._counts._replace(stored_blocks=self._counts.stored_blocks + len(blocks))
        self._to_disk(left)

    def _to_disk(self, records: list[tuple[bytes, KVRecord]]) -> None:
        if self._disk is not None and records:
            self._reader.submit(self._disk.put, records)

    def close(self) -> None:
        """Keep what the device still has cached, then all that host memory has, on the disk."""
        if self._disk is not None:
            self.copy_out()
            _, contents, _ = self._pool.books
            cached = [
                (block, content.hash, content.tokens)
                for block, content in enumerate(contents)
                if content is not None and not self._has(key_of(self._format, content.hash))
            ]
            for begin in range(0, len(cached), 64):
                self._keep(cached[begin : begin + 64])
            self._to_disk(self._host.drain())
            self._reader.submit(self._disk.close).result()
        self._reader.shutdown()
        if self.peers is not None:
            self.peers.close()

    # In

    def fetch(self, request: Request, put: Callable[[FetchedBlocks], None]) -> bool:
        """Begin to read what tiers have of a prompt and the device has not; False if nothing is worth waiting for."""
        holding = _holding(request, request.prompt)
        first, hashes = len(self._pool.match(holding).blocks), holding.hashes
        for hash in hashes:
            self._ghosts.note(hash)
        if self.peers is not None:
            self.peers.expect(request.request_id, hashes)
            if request.peer and self._fetch(self.peers, request, first, hashes, put):
                return True
        keys = [key_of(self._format, hash) for hash in hashes[first:]]
        count = next((place for place, key in enumerate(keys) if not self._has(key)), len(keys))
        if count < LEAST_BLOCKS:
            return False
        num_bytes = count * self._runner.block_bytes
        if not self.rates.is_reading_faster(count * self._pool.block_size, num_bytes, self._waiting_bytes):
            self._counts = self._counts._replace(declined_blocks=self._counts.declined_blocks + count)
            return False
        held = [self._host.get(key) for key in keys[:count]]
        wanted = [(key, hash, record) for key, hash, record in zip(keys, hashes[first:], held)]
        if all(held):
            put(FetchedBlocks(request, first, tuple(record for record in held if record is not None)))
        else:
            self._waiting_bytes += num_bytes
            self._reader.submit(self._read, request, first, wanted, num_bytes, put)
        self._fetching[request.request_id] = request
        return True

    def _fetch(
        self,
        peers: PeerExchange,
        request: Request,
        first: int,
        hashes: list[bytes],
        put: Callable[[FetchedBlocks], None],
    ) -> bool:
        """Begin to fetch what a peer has or computes, after what host memory has; False if it is not worth it."""
        found = (self._host.get(key_of(self._format, hash)) for hash in hashes[first:])
        held = tuple(record for record in takewhile(bool, found) if record is not None)
        num_got = first + len(held)
        wanted = hashes[num_got:]
        peer = peers.worthwhile(request.peer, len(wanted)) if len(wanted) >= LEAST_BLOCKS else None
        if peer is None:
            return False
        request_id, is_moved = request.request_id, peer.computes

        def on_part(records: list[KVRecord]) -> None:
            nonlocal num_got
            put(FetchedBlocks(request, num_got, tuple(records), is_last=False, is_moved=is_moved))
            num_got += len(records)

        def on_over(end: FetchEnd) -> None:
            put(FetchedBlocks(request, num_got, (), end=end))

        self._fetching[request_id] = request
        if held:
            put(FetchedBlocks(request, first, held, is_last=False))
        compute_s = peers.compute_s(len(wanted))
        peers.remote.fetch(peer, wanted, compute_s, lambda: request_id in self._fetching, on_part, on_over)
        return True

    def _read(
        self,
        request: Request,
        first: int,
        wanted: list[tuple[bytes, bytes, KVRecord | None]],
        num_bytes: int,
        put: Callable[[FetchedBlocks], None],
    ) -> None:
        """On the reader's thread: as many as are sound, from the first on."""
        begun = time.monotonic()
        records: list[KVRecord] = []
        for key, hash, held in wanted:
            record = held or (None if self._disk is None else self._disk.get(key, hash))
            if record is None:
                break
            records.append(record)
        if records:
            self.rates.note_read(sum(record.num_bytes for record in records), time.monotonic() - begun)
        put(FetchedBlocks(request, first, tuple(records), num_bytes))

    def take(self, fetched: FetchedBlocks) -> bool:
        """Write what was read into the cache; False if nobody waits for it any more."""
        self._waiting_bytes -= fetched.num_bytes
        if fetched.end is not None and self.peers is not None:
            self.peers.note_end(fetched.end)
        request = self._fetching.get(fetched.request.request_id)
        if request is None:
            return False
        if fetched.is_last:
            del self._fetching[request.request_id]
        size = self._pool.block_size
        sound = []
        for place, record in enumerate(fetched.records, fetched.first):
            is_whole = len(record.kv) == self._runner.block_bytes
            if not is_whole or record.tokens != packed(request.prompt[place * size : (place + 1) * size]):
                self._counts = self._counts._replace(faults=self._counts.faults + 1)
                break
            sound.append(record)
        if sound:
            self._write(request, fetched, sound)
        return fetched.is_last

    def _write(self, request: Request, fetched: FetchedBlocks, records: list[KVRecord]) -> None:
        """Blocks that have come to the device meanwhile are left as they are."""
        first = fetched.first
        prompt = request.prompt[: (first + len(records)) * self._pool.block_size]
        whole = (*prompt, 0)  # a match leaves a token to compute
        before = len(self._pool.match(_holding(request, whole)).blocks)
        if before < first or not self._scheduler.adopt(replace(request, prompt=prompt)):
            return  # what they continue has left the device, or there is no room: it is computed
        self.copy_out()
        targets = self._pool.match(_holding(request, whole)).blocks[before:]
        wanted = records[before - first :]
        self._runner.write_blocks(targets, [record.kv for record in wanted])
        if self.peers is not None and not fetched.is_last:
            self.peers.note_written(request.request_id, len(targets), is_moved=fetched.is_moved)
            return
        self._counts = self._counts._replace(loaded_blocks=self._counts.loaded_blocks + len(targets))
        for record in wanted:
            self._to_disk(self._host.put(key_of(self._format, record.hash), record))

    def cancel(self, request_id: int) -> Request | None:
        return self._fetching.pop(request_id, None)

    def note_step(self, batch: Batch, seconds: float) -> None:
        """How long a step took: steps of prompts tell what computing costs."""
        num_prompt = sum(chunk.length for chunk in batch.chunks if len(chunk.token_ids) > chunk.num_drafts)
        if 2 * num_prompt > batch.num_tokens:
            self.rates.note_prompt(batch.num_tokens, seconds)
            if self.peers is not None:
                self.peers.remote.rates.note_prompt(batch.num_tokens, seconds)

    def _has(self, key: bytes) -> bool:
        return key in self._host or (self._disk is not None and key in self._disk)


def _holding(request: Request, tokens: tuple[int, ...]) -> Holding:
    return Holding(list(tokens), Namespace(request.salt, request.adapter))
