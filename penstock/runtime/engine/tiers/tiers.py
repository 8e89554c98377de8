"""Joins the pool to the tiers: blocks about to be taken are copied out, blocks that a prompt begins with are copied in.

    out   `departures`
    in    a request that arrives: what the device lacks and a tier has is read beside the loop and verified; then `arrivals`
    late  a waiting sequence that is about to be admitted: `swaps`

Disk, checksums and waiting for copies belong to threads of their own.
"""

import time
from concurrent.futures import Executor

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import BlockRunner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.tiers.arrivals import LandingBlocks
from penstock.runtime.engine.tiers.departures import Departures
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.news import (
    FetchedBlocks,
    InboundBlocks,
    LeftBlocks,
    OrderDone,
    Put,
    TierCounts,
    TierHit,
    TierNews,
    holding_of,
)
from penstock.runtime.engine.tiers.orders import CacheOrders
from penstock.runtime.engine.tiers.policy import LEAST_BLOCKS, Rates
from penstock.runtime.engine.tiers.record import KVRecord
from penstock.runtime.engine.tiers.sessions import CacheOrder, SessionBook
from penstock.runtime.engine.tiers.store import TierStore
from penstock.runtime.engine.tiers.swaps import Swaps

CANARY_EVERY = 64
KEPT_AT_ONCE = 64
STAGED_FRACTION = 0.25
"""Of host memory that one prompt read from a disk may take there until it is admitted."""


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
        self._pool = scheduler.pool
        self._runner = runner
        self._waiter = waiter or reader
        self.store = store = TierStore(format, host, disk, reader)
        self.rates = Rates()
        self._fetching: dict[int, Request] = {}
        """Requests that wait for blocks."""
        self._leaders: dict[bytes, int] = {}
        """By hash, the request whose load it is part of."""
        self._followers: dict[int, list[Request]] = {}
        self._hits: dict[int, TierHit] = {}
        self._hashes: dict[int, list[bytes]] = {}
        """Of the prompts of requests that are not scheduled yet."""
        self._waiting_bytes = 0
        self.departures = Departures(self._pool, runner, self._waiter, store, keeps_all)
        self._arrivals = LandingBlocks(scheduler, runner, self._waiter, self._note_landed, canary_every)
        self._arrivals.before_write = self.departures.copy_out_now
        want = self.departures.want
        self._swaps = Swaps(scheduler, runner.block_bytes, store, self.rates, self._arrivals, want)
        self.swap_in = self._swaps.swap_in
        """To be called before a plan."""
        self.sessions = SessionBook(self._pool, format, None if disk is None else disk.folder, want=want)
        self.orders = CacheOrders(self.sessions, self._pool, runner, store)

    @property
    def is_fetching(self) -> bool:
        return bool(self._fetching or self._arrivals or self.departures.num_under_way)

    @property
    def counts(self) -> TierCounts:
        return self.store.counts._replace(canaries=self._arrivals.num_canaries)

    def open(self, put: Put) -> None:
        """`put` brings news of copies to the engine's thread."""
        self.departures.put = self.orders.put = self._arrivals.put = put

    def take(self, news: TierNews) -> tuple[Request, ...]:
        """Something was read or copied; returns the requests that wait for nothing here any more."""
        if isinstance(news, LeftBlocks):
            self.store.count(faults=not self.departures.take(news))
            return ()
        if isinstance(news, FetchedBlocks):
            return self._take_fetched(news)
        if isinstance(news, OrderDone):
            self.orders.take(news)
            return ()
        request_id = self._arrivals.land(news).request.request_id
        return () if self._swaps.land(news) else self._release(request_id)

    def order(self, order: CacheOrder) -> None:
        """Do what an operator wants; `orders` tells what came of it."""
        self.orders.do(order, self._scheduler.roster.now)

    def close(self) -> None:
        """Keep what the device still has cached, then all that host memory has, on the disk."""
        if self.store.disk is not None:
            self.departures.copy_out(0)
            _, contents, _ = self._pool.books
            held = [(block, content) for block, content in enumerate(contents) if content is not None]
            cached = [(block, content) for block, content in held if content.hash not in self.store]
            for begin in range(0, len(cached), KEPT_AT_ONCE):
                part = cached[begin : begin + KEPT_AT_ONCE]
                read = self._runner.read_blocks([block for block, _ in part])
                self.store.keep([KVRecord(one.hash, one.tokens, kv) for (_, one), kv in zip(part, read, strict=True)])
        self.store.close()
        self._waiter.shutdown()

    # In

    def fetch(self, request: Request, put: Put) -> bool:
        """Begin to bring what tiers have of a prompt and the device has not; False if nothing is worth waiting for."""
        holding = holding_of(request, request.prompt)
        found = self._pool.match(holding).blocks
        first, hashes = len(found), holding.hashes
        self.sessions.begin(request, hashes)
        self.departures.look(found, hashes)
        self._swaps.come(request.request_id)
        missing = hashes[first:]
        self._hashes[request.request_id] = hashes
        leader = self._leaders.get(missing[0]) if missing else None
        if missing and leader is None and missing[0] in self._arrivals.coming:
            return False  # it is there, or attached to its load, once it is about to be admitted
        if leader is not None:
            self._followers.setdefault(leader, []).append(request)
            self._fetching[request.request_id] = request
            self.store.count(attached=1)
            return True
        count = next((place for place, hash in enumerate(missing) if hash not in self.store), len(missing))
        held = [self.store.held(hash) for hash in missing[:count]]
        num_host = next((place for place, record in enumerate(held) if record is None), count)
        count = self._worthwhile(request, count, num_host, len(missing))
        if not count or (num_host >= count and not self._is_soon(request)):
            return False
        self._fetching[request.request_id] = request
        self._leaders.update(dict.fromkeys(missing[:count], request.request_id))
        if num_host >= count:
            records = tuple([record for record in held[:count] if record is not None])
            return not self._take_fetched(FetchedBlocks(request, first, records, num_host=count))
        num_bytes = (count - num_host) * self._runner.block_bytes
        self._waiting_bytes += num_bytes
        wanted = list(zip(missing, held))[:count]
        self.store.reader.submit(self._read, request, first, wanted, num_bytes, put)
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
            self.store.count(declined_blocks=count - num_host)
            count, miss = num_host, "computing was faster than reading the disk"
        if count and not self.rates.is_writing_faster(count * size, count * block_bytes):
            self.store.count(declined_blocks=count)
            count, miss = 0, "computing was faster than copying to the device"
        self._hits[request.request_id] = TierHit(miss=miss)
        return count if count >= LEAST_BLOCKS else 0

    def _read(
        self,
        request: Request,
        first: int,
        wanted: list[tuple[bytes, KVRecord | None]],
        num_bytes: int,
        put: Put,
    ) -> None:
        """On the reader's thread: as many as are sound, from the first on."""
        begun = time.monotonic()
        records: list[KVRecord] = []
        num_host = num_read = 0
        try:
            for hash, held in wanted:
                record = held or self.store.read(hash)
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
        fits_host = sum(record.num_bytes for record in sound) <= self.store.host.max_bytes * STAGED_FRACTION
        if sound and fits_host and not self._is_soon(fetched.request):
            self.store.keep(sound)
        elif sound:
            end = (fetched.first + len(sound)) * self._pool.block_size
            # Where there is no room, there is some once the request is about to be admitted.
            if self._arrivals.begin(fetched.request, fetched.request.prompt[:end], sound, fetched.num_host):
                return ()
        return self._release(request_id)

    def _sound(self, fetched: FetchedBlocks) -> tuple[KVRecord, ...]:
        sound = []
        for place, record in enumerate(fetched.records, fetched.first):
            if not self._arrivals.is_of(record, fetched.request, place):
                self.store.count(faults=1)
                self.store.drop([record.hash])
                break
            sound.append(record)
        return tuple(sound)

    def _note_landed(self, inbound: InboundBlocks, is_whole: bool, seconds: float) -> None:
        request_id, num_blocks, num_host = inbound.request.request_id, len(inbound.blocks), inbound.num_host
        if not is_whole:
            self.store.count(faults=1)
            self._swaps.forget(request_id)  # not tried again: it is computed
            return
        self.rates.note_write(sum(record.num_bytes for record in inbound.records), seconds)
        num_swapped = inbound.was_preempted * num_blocks
        self.store.count(loaded_blocks=num_blocks, host_blocks=num_host, swapped_blocks=num_swapped)
        self.store.keep(inbound.records[num_host:])
        if not inbound.was_preempted:
            hit, size = self._hits.get(request_id, TierHit()), self._pool.block_size
            self._hits[request_id] = hit._replace(host=num_host * size, disk=(num_blocks - num_host) * size)

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

    # What is told

    def report(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """The same, with what tiers gave beside what the prefix cache gave."""
        self.sessions.follow(deltas, self._scheduler.roster.now)
        for delta in deltas:
            if delta.finish is not None or delta.prefix is not None:
                self._swaps.forget(delta.request_id, delta.choice)
        if not self._hits or not any(delta.prefix is not None for delta in deltas):
            return deltas
        return tuple([self._reported(delta) if delta.prefix is not None else delta for delta in deltas])

    def _reported(self, delta: Delta) -> Delta:
        hit = self._hits.get(delta.request_id) if delta.choice else self._hits.pop(delta.request_id, None)
        if hit is None or delta.prefix is None:
            return delta
        return delta._replace(prefix=delta.prefix._replace(host=hit.host, disk=hit.disk, tier_miss=hit.miss))
