"""Joins the pool to the tiers: blocks about to be taken are copied out, blocks that a prompt begins with are copied in.

    out   `departures`
    in    a request that arrives: what the device lacks and a tier has is read beside the loop and verified; then its blocks are
          `arriving` in the pool, are written, and are published once they are there
    late  a waiting sequence that is about to be admitted gets the same way what the device lost since it came, or since it was
          preempted (swap); meanwhile it does not wait for its turn, and others go before it

Disk, checksums and waiting for copies belong to threads of their own.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Executor
from heapq import nsmallest

from penstock.runtime.core.batch import Batch, Delta
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import Holding, Namespace, packed
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import BlockCopy, BlockRunner, CopyingRunner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.core.sequence import Sequence
from penstock.runtime.engine.tiers.departures import Departures, LeftBlocks
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.news import (
    ArrivedBlocks,
    FetchedBlocks,
    InboundBlocks,
    OrderDone,
    Put,
    TierCounts,
    TierHit,
    TierNews,
)
from penstock.runtime.engine.tiers.orders import CacheOrders
from penstock.runtime.engine.tiers.policy import Rates
from penstock.runtime.engine.tiers.record import KVRecord, key_of
from penstock.runtime.engine.tiers.sessions import CacheOrder, SessionBook

LEAST_BLOCKS = 2
"""Fewer are computed at once."""
CANARY_EVERY = 64
"""One load in so many is read back from the device and compared before anybody may find it."""
KEPT_AT_ONCE = 64
STAGED_FRACTION = 0.25
"""Of host memory that one prompt read from a disk may take there until it is admitted."""
MAX_SWAPPED = 8
"""Waiting sequences that are looked at before a plan."""


class KVTiers:
    """Owned by the engine's thread; `reader` reads and writes the disk, `waiter` waits for copies."""

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
        waiter: Executor | None = None,
        canary_every: int = CANARY_EVERY,
    ) -> None:
        """With `keeps_all`, blocks are kept that no prompt has asked for twice."""
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.pool
        self._runner = runner
        self._copier = runner if isinstance(runner, CopyingRunner) else None
        self._format = format
        self._reader = reader
        self._waiter = waiter or reader
        self._host = host
        self._disk = disk
        self._canary_every = canary_every
        self.rates = Rates()
        self._fetching: dict[int, Request] = {}
        """Requests that wait for blocks."""
        self._leaders: dict[bytes, int] = {}
        """By hash, the request whose load it is part of."""
        self._followers: dict[int, list[Request]] = {}
        self._arrivals: dict[int, InboundBlocks] = {}
        self._num_arrivals = 0
        self._coming: dict[bytes, int] = {}
        """By hash, the arrival that brings it."""
        self._held: dict[int, list[Sequence]] = {}
        """By arrival, sequences that wait for it, not for their turn; the first is the one it is for."""
        self._unseen: dict[tuple[int, int], bool] = {}
        """Waiting sequences that were not about to be admitted yet; whether they were preempted."""
        self._hits: dict[int, TierHit] = {}
        self._hashes: dict[int, list[bytes]] = {}
        """Of the prompts of requests that are not scheduled yet."""
        self._waiting_bytes = 0
        self._counts = TierCounts()
        self.departures = Departures(
            self._pool,
            runner,
            self._waiter,
            has=lambda hash: self._has(key_of(format, hash)),
            keep=self._keep,
            drop=self._drop,
            keeps_all=keeps_all,
        )
        scheduler.roster.on_preempt = self._swap_out
        self.sessions = SessionBook(
            self._pool, format, None if disk is None else disk.folder, want=self.departures.want
        )
        self.orders = CacheOrders(self.sessions, self._pool, runner, reader, format, host, disk, self._drop)

    @property
    def is_fetching(self) -> bool:
        return bool(self._fetching or self._arrivals or self.departures.num_under_way)

    @property
    def counts(self) -> TierCounts:
        disk = self._disk
        return self._counts._replace(
            host_bytes=self._host.num_bytes,
            disk_bytes=0 if disk is None else disk.num_bytes,
            faults=self._counts.faults + (0 if disk is None else disk.num_faults),
        )

    def open(self, put: Put) -> None:
        """`put` brings news of copies to the engine's thread."""
        self.departures.put = self.orders.put = put

    def take(self, news: TierNews) -> tuple[Request, ...]:
        """Something was read or copied; returns the requests that wait for nothing here any more."""
        if isinstance(news, LeftBlocks):
            self._count(faults=not self.departures.take(news))
            return ()
        if isinstance(news, FetchedBlocks):
            return self._take_fetched(news)
        if isinstance(news, OrderDone):
            self.orders.take(news)
            return ()
        request_id = self._land(news)
        held = self._held.pop(news.number, None)
        if held is None:
            return self._release(request_id)
        for sequence in held:
            if sequence.finish is None:
                self._scheduler.roster.wait(sequence)
                if news.is_whole:  # there may be more for those that waited for the load of another
                    self._unseen[sequence.request_id, sequence.choice] = False
        return ()

    # Out

    def copy_out(self, step: int = 0, *, are_sound: bool = True) -> None:
        """To be called between a plan and its launch."""
        self.departures.copy_out(step, are_sound=are_sound)

    def order(self, order: CacheOrder) -> None:
        """Do what an operator wants; `orders` tells what came of it."""
        self.orders.do(order, self._scheduler.roster.now)

    def copy_out_now(self) -> None:
        """Blocks were taken outside of a plan."""
        self.copy_out(self.departures.step)

    def _keep(self, records: list[KVRecord]) -> None:
        left: list[tuple[bytes, KVRecord]] = []
        for record in records:
            left += self._host.put(key_of(self._format, record.hash), record)
        self._count(stored_blocks=len(records))
        self._to_disk(left)

    def _drop(self, hashes: Iterable[bytes]) -> None:
        keys = [key_of(self._format, hash) for hash in hashes]
        for key in keys:
            self._host.drop(key)
        if self._disk is not None and keys:
            self._reader.submit(self._disk.drop, keys)

    def _to_disk(self, records: list[tuple[bytes, KVRecord]]) -> None:
        if self._disk is not None and records:
            self._reader.submit(self._disk.put, records)

    def close(self) -> None:
        """Keep what the device still has cached, then all that host memory has, on the disk."""
        if self._disk is not None:
            self.copy_out()
            _, contents, _ = self._pool.books
            cached = [
                (block, content)
                for block, content in enumerate(contents)
                if content is not None and not self._has(key_of(self._format, content.hash))
            ]
            for begin in range(0, len(cached), KEPT_AT_ONCE):
                part = cached[begin : begin + KEPT_AT_ONCE]
                read = self._runner.read_blocks([block for block, _ in part])
                self._keep([KVRecord(held.hash, held.tokens, kv) for (_, held), kv in zip(part, read, strict=True)])
            self._to_disk(self._host.drain())
            self._reader.submit(self._disk.close).result()
        self._reader.shutdown()
        self._waiter.shutdown()

    # In

    def fetch(self, request: Request, put: Put) -> bool:
        """Begin to bring what tiers have of a prompt and the device has not; False if nothing is worth waiting for."""
        holding = _holding(request, request.prompt)
        found = self._pool.match(holding).blocks
        first, hashes = len(found), holding.hashes
        self.sessions.begin(request, hashes)
        self.departures.look(found, hashes)
        self._unseen[request.request_id, 0] = False
        missing = hashes[first:]
        self._hashes[request.request_id] = hashes
        leader = self._leaders.get(missing[0]) if missing else None
        if missing and leader is None and missing[0] in self._coming:
            return False  # it is there, or attached to its load, once it is about to be admitted
        if leader is not None:
            self._followers.setdefault(leader, []).append(request)
            self._fetching[request.request_id] = request
            self._count(attached=1)
            return True
        keys = [key_of(self._format, hash) for hash in missing]
        count = next((place for place, key in enumerate(keys) if not self._has(key)), len(keys))
        held = [self._host.get(key) for key in keys[:count]]
        num_host = next((place for place, record in enumerate(held) if record is None), count)
        count = self._worthwhile(request, count, num_host, len(keys))
        if not count or (num_host >= count and not self._is_soon(request)):
            return False
        self._fetching[request.request_id] = request
        self._leaders.update(dict.fromkeys(missing[:count], request.request_id))
        if num_host >= count:
            records = tuple([record for record in held[:count] if record is not None])
            return not self._take_fetched(FetchedBlocks(request, first, records, num_host=count))
        num_bytes = (count - num_host) * self._runner.block_bytes
        self._waiting_bytes += num_bytes
        wanted = list(zip(keys, missing, held))[:count]
        self._reader.submit(self._read, request, first, wanted, num_bytes, put)
        return True

    def _is_soon(self, request: Request) -> bool:
        """A request would be admitted at once. What is loaded long before is lost again to those admitted earlier: host memory
        has it until then."""
        roster, pool = self._scheduler.roster, self._pool
        num_free = pool.num_available - self._scheduler.num_running
        return roster.waiting_since is None and roster.has_row and num_free >= pool.blocks_for(len(request.prompt))

    def _worthwhile(self, request: Request, count: int, num_host: int, num_missing: int) -> int:
        """Of the `count` blocks that tiers have after those on the device, how many are there sooner than they would be
        computed. What host memory has need not wait for the disk."""
        size, block_bytes = self._pool.block_size, self._runner.block_bytes
        miss = "" if count == num_missing else "no tier has the next block"
        if count < LEAST_BLOCKS:
            self._hits[request.request_id] = TierHit(miss=miss)
            return 0
        num_bytes = (count - num_host) * block_bytes
        is_read = num_host == count or self.rates.is_reading_faster(
            (count - num_host) * size, num_bytes, self._waiting_bytes
        )
        if not is_read:
            self._count(declined_blocks=count - num_host)
            count, miss = num_host, "computing was faster than reading the disk"
        if count and not self.rates.is_writing_faster(count * size, count * block_bytes):
            self._count(declined_blocks=count)
            count, miss = 0, "computing was faster than copying to the device"
        self._hits[request.request_id] = TierHit(miss=miss)
        return count if count >= LEAST_BLOCKS else 0

    def _read(
        self,
        request: Request,
        first: int,
        wanted: list[tuple[bytes, bytes, KVRecord | None]],
        num_bytes: int,
        put: Put,
    ) -> None:
        """On the reader's thread: as many as are sound, from the first on."""
        begun = time.monotonic()
        records: list[KVRecord] = []
        num_host = num_read = 0
        try:
            for key, hash, held in wanted:
                record = held or (None if self._disk is None else self._disk.get(key, hash))
                if record is None:
                    break
                records.append(record)
                num_host += held is not None
                num_read += 0 if held is not None else record.num_bytes
            if num_read:
                self.rates.note_read(num_read, time.monotonic() - begun)
        finally:
            put(FetchedBlocks(request, first, tuple(records), num_bytes, num_host))

    def _take_fetched(self, fetched: FetchedBlocks) -> tuple[Request, ...]:
        """Have what was read written to the device, unless nobody waits for it any more."""
        self._waiting_bytes -= fetched.num_bytes
        request_id = fetched.request.request_id
        is_wanted = request_id in self._fetching or request_id in self._followers
        sound = self._sound(fetched) if is_wanted else ()
        fits_host = sum(record.num_bytes for record in sound) <= self._host.max_bytes * STAGED_FRACTION
        if sound and fits_host and not self._is_soon(fetched.request):
            self._to_disk([left for record in sound for left in self._host_put(record)])
        elif sound and self._arrive(fetched, sound):
            return ()
        return self._release(request_id)

    def _sound(self, fetched: FetchedBlocks) -> tuple[KVRecord, ...]:
        size, prompt, sound = self._pool.block_size, fetched.request.prompt, []
        for place, record in enumerate(fetched.records, fetched.first):
            is_whole = len(record.kv) == self._runner.block_bytes
            if not is_whole or record.tokens != packed(prompt[place * size : (place + 1) * size]):
                self._count(faults=1)
                self._drop([record.hash])
                break
            sound.append(record)
        return tuple(sound)

    def _arrive(self, fetched: FetchedBlocks, records: tuple[KVRecord, ...]) -> bool:
        """Write records to blocks of the device; False if that is over already. Blocks that have come meanwhile are left."""
        request, first = fetched.request, fetched.first
        prompt = request.prompt[: (first + len(records)) * self._pool.block_size]
        holding = _holding(request, (*prompt, 0))
        blocks = self._pool.arrive(holding, spare=self._scheduler.num_running)
        wanted = records[len(records) - len(blocks) :] if blocks else ()
        if not blocks or len(blocks) > len(records):
            if holding.blocks:  # what they continue has left the device
                self._pool.land(holding, is_whole=False)
            return False  # where there was no room, there is some once it is about to be admitted
        num_host = fetched.num_host if len(blocks) == len(records) else min(fetched.num_host, len(blocks))
        return self._write(InboundBlocks(request, holding, blocks, wanted, num_host))

    def _write(self, inbound: InboundBlocks) -> bool:
        """False if it is over already."""
        self.copy_out_now()
        number = self._num_arrivals = self._num_arrivals + 1
        self._arrivals[number] = inbound
        self._coming.update({record.hash: number for record in inbound.records})
        contents = [record.kv for record in inbound.records]
        begun = time.monotonic()
        if self._copier is None:
            self._runner.write_blocks(inbound.blocks, contents)
            self._land(ArrivedBlocks(number, True, time.monotonic() - begun))
            return False
        copy = self._copier.begin_write(inbound.blocks, contents)
        self._waiter.submit(self._wait, number, copy, begun)
        return True

    def _wait(self, number: int, copy: BlockCopy, begun: float) -> None:
        is_whole = False
        try:
            copy.wait()
            is_whole = True
        finally:
            seconds = time.monotonic() - begun if copy.seconds is None else copy.seconds
            self.departures.put(ArrivedBlocks(number, is_whole, seconds))

    def _land(self, arrived: ArrivedBlocks) -> int:
        """Publish what has arrived, if it did; returns whose request it was for."""
        request, holding, blocks, records, num_host, was_preempted = self._arrivals.pop(arrived.number)
        self._coming = {hash: number for hash, number in self._coming.items() if number != arrived.number}
        is_whole = arrived.is_whole and self._is_same(arrived.number, blocks, records)
        self._pool.land(holding, is_whole=is_whole)
        if not is_whole:
            self._count(faults=1)
            self._unseen.pop((request.request_id, 0), None)  # not tried again: it is computed
            return request.request_id
        self.rates.note_write(sum(record.num_bytes for record in records), arrived.seconds)
        self._count(loaded_blocks=len(blocks), host_blocks=num_host, swapped_blocks=was_preempted * len(blocks))
        if not was_preempted:
            hit, size = self._hits.get(request.request_id, TierHit()), self._pool.block_size
            self._hits[request.request_id] = hit._replace(host=num_host * size, disk=(len(blocks) - num_host) * size)
        self._to_disk([left for record in records[num_host:] for left in self._host_put(record)])
        return request.request_id

    def _is_same(self, number: int, blocks: tuple[int, ...], records: tuple[KVRecord, ...]) -> bool:
        """The canary: what lies on the device is what was to be written."""
        if number % self._canary_every:
            return True
        self._count(canaries=1)
        return all(mine == record.kv for mine, record in zip(self._runner.read_blocks(blocks), records, strict=True))

    def _host_put(self, record: KVRecord) -> list[tuple[bytes, KVRecord]]:
        return self._host.put(key_of(self._format, record.hash), record)

    def _release(self, request_id: int) -> tuple[Request, ...]:
        """A load is over: its request is to be scheduled, and so are those that waited for it. What tiers have beyond that is
        brought when they are about to be admitted."""
        self._leaders = {hash: leader for hash, leader in self._leaders.items() if leader != request_id}
        waited = [self._fetching.pop(follower.request_id, None) for follower in self._followers.pop(request_id, ())]
        ready = [self._fetching.pop(request_id, None), *waited]
        return tuple([request for request in ready if request is not None])

    def hashes_of(self, request: Request) -> list[bytes]:
        """Of the blocks of its prompt, as found when it came; told once."""
        return self._hashes.pop(request.request_id, [])

    def cancel(self, request_id: int) -> Request | None:
        """The load goes on for those that wait for it too."""
        for followers in self._followers.values():
            followers[:] = [one for one in followers if one.request_id != request_id]
        self._hits.pop(request_id, None)
        self._hashes.pop(request_id, None)
        return self._fetching.pop(request_id, None)

    # Preempted sequences

    def _swap_out(self, sequence: Sequence) -> None:
        """A sequence is preempted: what it has computed is worth a copy where that comes back sooner than it would be
        computed again."""
        hashes = sequence.holding.hashes[: sequence.holding.num_published]
        num_tokens = len(hashes) * self._pool.block_size
        if hashes and self.rates.is_writing_faster(num_tokens, len(hashes) * self._runner.block_bytes):
            self.departures.want(hashes)
            self._unseen[sequence.request_id, sequence.choice] = True

    def swap_in(self) -> None:
        """Before a plan: bring what host memory has of sequences that are about to be admitted. When they came there was no
        room for it, or the device had it and lost it since, or they were preempted."""
        roster, pool = self._scheduler.roster, self._pool
        if not self._unseen or roster.waiting_since is None or not roster.has_row:
            return
        num_free = pool.num_available - self._scheduler.num_running
        num_rows = self._scheduler.limits.max_sequences - self._scheduler.num_running
        # In order: what was loaded for those before is theirs, and no room for those after.
        for sequence in nsmallest(min(MAX_SWAPPED, num_rows), roster.order, key=roster.order.rank):
            num_free -= pool.blocks_for(len(sequence.tokens))
            if num_free < 0:
                return
            was_preempted = self._unseen.pop((sequence.request_id, sequence.choice), None)
            if was_preempted is not None:
                self._swap_in(sequence, was_preempted=was_preempted)

    def _swap_in(self, sequence: Sequence, *, was_preempted: bool) -> None:
        pool, size = self._pool, self._pool.block_size
        first = len(pool.match(sequence.holding).blocks)
        missing, records = sequence.holding.hashes[first:], []
        number = self._coming.get(missing[0]) if missing else None
        if number in self._held:
            self._held[number].append(sequence)
            self._scheduler.roster.give_up(sequence)
            self._count(attached=1)
            return
        for hash in missing:
            record = self._host.get(key_of(self._format, hash))
            if record is None:
                break
            records.append(record)
        num_tokens, num_bytes = len(records) * size, len(records) * self._runner.block_bytes
        if len(records) < LEAST_BLOCKS or not self.rates.is_writing_faster(num_tokens, num_bytes):
            return
        tokens = (*sequence.tokens[: (first + len(records)) * size], 0)
        holding = _holding(sequence.request, tokens)
        blocks = pool.arrive(holding, spare=self._scheduler.num_running)
        if len(blocks) != len(records):
            if holding.blocks:
                pool.land(holding, is_whole=False)
            return
        if self._write(InboundBlocks(sequence.request, holding, blocks, tuple(records), len(records), was_preempted)):
            self._held[self._num_arrivals] = [sequence]
            self._scheduler.roster.give_up(sequence)

    # What is told

    def tell(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """The same, with what tiers gave beside what the prefix cache gave."""
        self.sessions.follow(deltas, self._scheduler.roster.now)
        for delta in deltas:
            if delta.finish is not None or delta.prefix is not None:
                self._unseen.pop((delta.request_id, delta.choice), None)
        if not self._hits or not any(delta.prefix is not None for delta in deltas):
            return deltas
        return tuple([self._told(delta) if delta.prefix is not None else delta for delta in deltas])

    def _told(self, delta: Delta) -> Delta:
        hit = self._hits.get(delta.request_id) if delta.choice else self._hits.pop(delta.request_id, None)
        if hit is None or delta.prefix is None:
            return delta
        return delta._replace(prefix=delta.prefix._replace(host=hit.host, disk=hit.disk, tier_miss=hit.miss))

    def note_step(self, batch: Batch, seconds: float) -> None:
        """How long a step took: steps of prompts tell what computing costs."""
        num_prompt = sum(chunk.length for chunk in batch.chunks if len(chunk.token_ids) > chunk.num_drafts)
        if 2 * num_prompt > batch.num_tokens:
            self.rates.note_prompt(batch.num_tokens, seconds)

    def _has(self, key: bytes) -> bool:
        return key in self._host or (self._disk is not None and key in self._disk)

    def _count(self, **more: int) -> None:
        counts = self._counts
        self._counts = counts._replace(**{name: getattr(counts, name) + count for name, count in more.items()})


def _holding(request: Request, tokens: tuple[int, ...]) -> Holding:
    return Holding(list(tokens), Namespace(request.salt, request.adapter))
