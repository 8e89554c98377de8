"""All that one engine has to do with its peers: what it offers, what it fetches, what came of both. For the engine's thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import BlockRunner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.peers.counts import FetchEnd, TransferCounts
from penstock.runtime.engine.peers.offers import BlockOffers, BlockRead, ReadOn
from penstock.runtime.engine.peers.remote import Peer, PeerFetch, RemoteTier, read_peer
from penstock.runtime.engine.peers.server import BlockServer
from penstock.runtime.engine.tiers.arrivals import LandingBlocks
from penstock.runtime.engine.tiers.news import ArrivedBlocks, InboundBlocks, holding_of
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

    arrived: ArrivedBlocks


GUESSED_TOKENS_S = 1000.0
"""Prompt tokens computed in a second, while nothing was measured."""
PeerNews = BlockRead | ReadOn | PeerBlocks | PeerLanded


class PeerExchange:
    def __init__(self, scheduler: Scheduler, runner: BlockRunner, format: bytes, key: bytes, host: str) -> None:
        """Nothing is offered before `open`."""
        self.remote = RemoteTier(key, format)
        self._pool = pool = scheduler.pool
        self._offers = BlockOffers(pool, runner)
        self.turn = self._offers.turn
        self._block_size = pool.block_size
        self._block_bytes = runner.block_bytes
        self._fetching: dict[int, Request] = {}
        """Requests that wait for blocks."""
        self._waiter = ThreadPoolExecutor(2, thread_name_prefix="kv-arrivals")
        self.arrivals = LandingBlocks(scheduler, runner, self._waiter, self._note_landed)
        self.arrivals.put = lambda arrived: self._put(PeerLanded(arrived))
        self._landing: dict[int, PeerBlocks] = {}
        """By request, blocks on their way to the device."""
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
        self._waiter.shutdown()

    def take(self, message: PeerNews) -> Request | None:
        """A peer asks, or blocks have come; returns the request that waits for nothing here any more."""
        if isinstance(message, PeerLanded):
            return self._take_landed(message)
        if isinstance(message, PeerBlocks):
            return self._take_blocks(message)
        self._offers.take(message)
        return None

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
            PeerFetch(
                peer,
                wanted,
                len(wanted) * self._block_size / (self.remote.rates.prompt_tokens_s or GUESSED_TOKENS_S),
                lambda: request_id in self._fetching,
                on_part,
                lambda end: self._put(PeerBlocks(request, num_got, end=end)),
            )
        )
        return True

    def cancel(self, request_id: int) -> Request | None:
        return self._fetching.pop(request_id, None)

    def _take_landed(self, landed: PeerLanded) -> Request | None:
        request_id = self.arrivals.land(landed.arrived).request.request_id
        parts = self._parts.pop(request_id, deque())
        while parts:
            ready = self._take_blocks(parts.popleft())
            if ready is not None:
                return ready
            if request_id in self._landing:
                self._parts[request_id] = parts
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
        """Lay blocks into the cache, all of them or none."""
        request, places = came.request, enumerate(came.records, came.first)
        if not all(self.arrivals.is_of(record, request, place) for place, record in places):
            self._counts = self._counts.ended(FetchEnd("damaged"))
            return
        end = (came.first + len(came.records)) * self._block_size
        self._landing[request.request_id] = came
        if not self.arrivals.begin(request, request.prompt[:end], came.records):
            self._landing.pop(request.request_id, None)

    def _note_landed(self, inbound: InboundBlocks, is_whole: bool, seconds: float) -> None:
        came, num_blocks = self._landing.pop(inbound.request.request_id), len(inbound.blocks)
        if not is_whole:
            return
        self._counts = self._counts._replace(fetched_blocks=self._counts.fetched_blocks + num_blocks)
        if came.is_moved:
            request_id = came.request.request_id
            self._moved[request_id] = self._moved.get(request_id, 0) + num_blocks * self._block_size
            self._counts = self._counts._replace(moved_blocks=self._counts.moved_blocks + num_blocks)

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

    def follow(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """The deltas, saying of what the prefix cache gave what peers computed for the request."""
        self._offers.follow(deltas)
        if not self._moved:
            return deltas
        return tuple(map(self._reported, deltas))

    def _reported(self, delta: Delta) -> Delta:
        num_moved = self._moved.get(delta.request_id, 0)
        if num_moved and delta.prefix is not None:
            num_moved = min(num_moved, delta.prefix.num_tokens)
            delta = delta._replace(prefix=delta.prefix._replace(num_moved=num_moved))
        if delta.finish is not None:
            self._moved.pop(delta.request_id, None)
        return delta
