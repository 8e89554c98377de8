"""All that one engine has to do with its peers: what it offers, what it fetches, what came of both. For the engine's thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.prefix import Holding, packed
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import BlockCopy, BlockRunner, CopyingRunner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.peers.counts import FetchEnd, TransferCounts
from penstock.runtime.engine.peers.offers import BlockOffers, BlockRead, ReadOn
from penstock.runtime.engine.peers.remote import Peer, RemoteTier, read_peer
from penstock.runtime.engine.peers.server import BlockServer
from penstock.runtime.engine.tiers.news import holding_of
from penstock.runtime.engine.tiers.policy import LEAST_BLOCKS
from penstock.runtime.engine.tiers.record import KVRecord


class PeerBlocks(NamedTuple):
    """Some blocks of a request's prompt have come; with `end`, no more will."""

    request: Request
    first: int
    """Number of the first of its blocks that they are."""
    records: tuple[KVRecord, ...] = ()
    is_moved: bool = False
    """A peer computed them for this request."""
    end: FetchEnd | None = None


class PeerLanded(NamedTuple):
    """Blocks that came for a request are on the device, or will never be."""

    request_id: int
    is_whole: bool


PeerNews = BlockRead | ReadOn | PeerBlocks | PeerLanded


class PeerExchange:
    def __init__(self, scheduler: Scheduler, runner: BlockRunner, format: bytes, key: bytes, host: str) -> None:
        """Nothing is offered before `open`."""
        self.remote = RemoteTier(key, format)
        self.before_write: Callable[[], None] = lambda: None
        """Called when blocks have been taken and before anything is written to them."""
        self._scheduler = scheduler
        self._pool = pool = scheduler.pool
        self._runner = runner
        self._offers = BlockOffers(pool, runner)
        self._block_size = pool.block_size
        self._block_bytes = runner.block_bytes
        self._fetching: dict[int, Request] = {}
        """Requests that wait for blocks."""
        self._copier = runner if isinstance(runner, CopyingRunner) else None
        self._waiter = None if self._copier is None else ThreadPoolExecutor(2, thread_name_prefix="kv-arrivals")
        self._landing: dict[int, tuple[PeerBlocks, Holding, int]] = {}
        """By request, blocks on their way to the device, and how many."""
        self._parts: dict[int, deque[PeerBlocks]] = {}
        """What came meanwhile: each part continues the one before."""
        self._address = (host, key, format)
        self._server: BlockServer | None = None
        self._moved: dict[int, int] = {}
        """Tokens of requests' prompts that peers computed for them."""
        self._counts = TransferCounts()

    def open(self, put: Callable[[PeerNews], None]) -> None:
        """Offer blocks; `put` hands messages to the engine's thread, which are to be given to `take`."""
        self._server = BlockServer(*self._address, put)
        self._put = put

    @property
    def is_fetching(self) -> bool:
        return bool(self._fetching or self._landing)

    @property
    def address(self) -> str:
        """Port and generation, as peers need them, and the bytes of a block."""
        server = self._server
        return "" if server is None else f"{server.port} {server.generation.hex()} {self._block_bytes}"

    @property
    def counts(self) -> TransferCounts:
        num_refused = 0 if self._server is None else self._server.num_refused
        return self._counts._replace(
            offered_blocks=self._offers.num_handed_out,
            refused_peers=num_refused,
            shared_peers=0 if self._server is None else self._server.num_shared,
            prompt_tokens_s=self.remote.rates.prompt_tokens_s or 0.0,
            fetched_bytes_s=self.remote.rates.read_bytes_s or 0.0,
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.remote.close()
        if self._waiter is not None:
            self._waiter.shutdown()

    def take(self, message: PeerNews) -> Request | None:
        """A peer asks, or blocks have come; returns the request that waits for nothing here any more."""
        if isinstance(message, PeerLanded):
            return self._take_landed(message)
        if isinstance(message, PeerBlocks):
            return self._take_blocks(message)
        self._offers.take(message)
        return None

    def turn(self, num_launched: int, num_landed: int) -> None:
        """Hand out blocks that others asked for. Between steps, told how many were launched and have ended."""
        self._offers.turn(num_launched, num_landed)

    def fetch(self, request: Request) -> bool:
        """Begin to fetch what a peer has of a prompt and this cache has not; False if nothing is worth waiting for."""
        holding = holding_of(request, request.prompt)
        first = len(self._pool.match(holding).blocks)
        self._offers.expect(request.request_id, holding.hashes)
        wanted = holding.hashes[first:]
        peer = self._worthwhile(request.peer, len(wanted)) if request.peer else None
        if peer is None:
            return False
        request_id, is_moved, num_got = request.request_id, peer.computes, first

        def on_part(records: list[KVRecord]) -> None:
            nonlocal num_got
            self._put(PeerBlocks(request, num_got, tuple(records), is_moved))
            num_got += len(records)

        self._fetching[request_id] = request
        self.remote.fetch(
            peer,
            wanted,
            self._compute_s(len(wanted)),
            lambda: request_id in self._fetching,
            on_part,
            lambda end: self._put(PeerBlocks(request, num_got, end=end)),
        )
        return True

    def cancel(self, request_id: int) -> Request | None:
        return self._fetching.pop(request_id, None)

    def _take_landed(self, landed: PeerLanded) -> Request | None:
        came, holding, count = self._landing.pop(landed.request_id)
        self._pool.land(holding, is_whole=landed.is_whole)
        if landed.is_whole:
            self._note_written(landed.request_id, count, is_moved=came.is_moved)
        parts = self._parts.pop(landed.request_id, deque())
        while parts:
            ready = self._take_blocks(parts.popleft())
            if ready is not None:
                return ready
            if landed.request_id in self._landing:
                self._parts[landed.request_id] = parts
                break
        return None

    def _take_blocks(self, came: PeerBlocks) -> Request | None:
        if came.request.request_id in self._landing:
            self._parts.setdefault(came.request.request_id, deque()).append(came)
            return None
        if came.end is not None:
            self._counts = self._counts.ended(came.end)
            if came.end.num_bytes:
                self.remote.rates.note_read(came.end.num_bytes, came.end.seconds)
            return self._fetching.pop(came.request.request_id, None)
        if came.request.request_id in self._fetching:
            self._write(came)
        return None

    def _write(self, came: PeerBlocks) -> None:
        """Lay blocks into the cache, all of them or none; those that are there by now are left as they are."""
        request, size = came.request, self._block_size
        end = came.first + len(came.records)
        for place, record in enumerate(came.records, came.first):
            is_own = record.tokens == packed(request.prompt[place * size : (place + 1) * size])
            if not is_own or len(record.kv) != self._block_bytes:
                self._counts = self._counts.ended(FetchEnd("damaged"))
                return
        holding = holding_of(request, (*request.prompt[: end * size], 0))
        blocks = self._pool.arrive(holding, spare=self._scheduler.num_running)
        if not blocks:
            return  # there is no room, or all of it is there
        if len(blocks) > len(came.records):  # what they continue has left the cache
            self._pool.land(holding, is_whole=False)
            return
        self.before_write()
        contents = [record.kv for record in came.records[-len(blocks) :]]
        self._landing[request.request_id] = came, holding, len(blocks)
        if self._copier is None or self._waiter is None:
            self._runner.write_blocks(blocks, contents)
            self._take_landed(PeerLanded(request.request_id, is_whole=True))
        else:
            self._waiter.submit(self._wait, request.request_id, self._copier.begin_write(blocks, contents))

    def _wait(self, request_id: int, copy: BlockCopy) -> None:
        is_whole = False
        try:
            copy.wait()
            is_whole = True
        finally:
            self._put(PeerLanded(request_id, is_whole))

    def _worthwhile(self, text: str, num_blocks: int) -> Peer | None:
        """The peer that a request names, if fetching so many blocks from it pays."""
        peer = read_peer(text)
        if peer is None or num_blocks < LEAST_BLOCKS:
            return None
        num_tokens, num_bytes = num_blocks * self._block_size, num_blocks * self._block_bytes
        if peer.computes or self.remote.rates.is_reading_faster(num_tokens, num_bytes, 0):
            return peer
        self._counts = self._counts._replace(declined_blocks=self._counts.declined_blocks + num_blocks)
        return None

    def _compute_s(self, num_blocks: int) -> float:
        """Seconds that computing so many blocks would take here; a guess while nothing was measured."""
        return num_blocks * self._block_size / (self.remote.rates.prompt_tokens_s or 1000.0)

    def _note_written(self, request_id: int, num_blocks: int, *, is_moved: bool) -> None:
        """Blocks of a peer were laid into the cache for a request; `is_moved`: they were computed for it."""
        counts = self._counts._replace(fetched_blocks=self._counts.fetched_blocks + num_blocks)
        if is_moved:
            self._moved[request_id] = self._moved.get(request_id, 0) + num_blocks * self._block_size
            counts = counts._replace(moved_blocks=counts.moved_blocks + num_blocks)
        self._counts = counts

    def follow(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """The deltas, saying of what the prefix cache gave what peers computed for the request."""
        self._offers.follow(deltas)
        if not self._moved:
            return deltas
        return tuple(map(self._told, deltas))

    def _told(self, delta: Delta) -> Delta:
        num_moved = self._moved.get(delta.request_id, 0)
        if num_moved and delta.prefix is not None:
            num_moved = min(num_moved, delta.prefix.num_tokens)
            delta = delta._replace(prefix=delta.prefix._replace(num_moved=num_moved))
        if delta.finish is not None:
            self._moved.pop(delta.request_id, None)
        return delta
