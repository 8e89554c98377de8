"""All that one engine has to do with its peers: what it offers, what it fetches, what came of both. For the engine's thread."""

from collections.abc import Sequence

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.runner import BlockRunner
from penstock.runtime.engine.peers.counts import FetchEnd, TransferCounts
from penstock.runtime.engine.peers.offers import BlockOffers, BlockRead, ReadOn
from penstock.runtime.engine.peers.remote import Peer, RemoteTier, read_peer
from penstock.runtime.engine.peers.server import BlockServer, Put


class PeerExchange:
    def __init__(self, pool: BlockPool, runner: BlockRunner, format: bytes, key: bytes, host: str) -> None:
        """Nothing is offered before `open`."""
        self.remote = RemoteTier(key, format)
        self._offers = BlockOffers(pool, runner)
        self._block_size = pool.block_size
        self._block_bytes = runner.block_bytes
        self._address = (host, key, format)
        self._server: BlockServer | None = None
        self._moved: dict[int, int] = {}
        """Tokens of requests' prompts that peers computed for them."""
        self._counts = TransferCounts()

    def open(self, put: Put) -> None:
        """Offer blocks; `put` hands messages to the engine's thread, which are to be given to `take`."""
        self._server = BlockServer(*self._address, put)

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
            prompt_tokens_s=self.remote.rates.prompt_tokens_s or 0.0,
            fetched_bytes_s=self.remote.rates.read_bytes_s or 0.0,
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.remote.close()

    # What others fetch here

    def take(self, message: BlockRead | ReadOn) -> None:
        self._offers.take(message)

    def expect(self, request_id: int, hashes: Sequence[bytes]) -> None:
        """A prompt is to be computed here."""
        self._offers.expect(request_id, hashes)

    def turn(self, num_launched: int, num_landed: int) -> None:
        self._offers.turn(num_launched, num_landed)

    # What is fetched from others

    def worthwhile(self, text: str, num_blocks: int) -> Peer | None:
        """The peer that a request names, if fetching so many blocks from it pays."""
        peer = read_peer(text)
        if peer is None or peer.computes:
            return peer
        num_tokens, num_bytes = num_blocks * self._block_size, num_blocks * self._block_bytes
        if self.remote.rates.is_reading_faster(num_tokens, num_bytes, 0):
            return peer
        self._counts = self._counts._replace(declined_blocks=self._counts.declined_blocks + num_blocks)
        return None

    def compute_s(self, num_blocks: int) -> float:
        """Seconds that computing so many blocks would take here; a guess while nothing was measured."""
        return num_blocks * self._block_size / (self.remote.rates.prompt_tokens_s or 1000.0)

    def note_end(self, end: FetchEnd) -> None:
        self._counts = self._counts.ended(end)
        if end.num_bytes:
            self.remote.rates.note_read(end.num_bytes, end.seconds)

    def note_written(self, request_id: int, num_blocks: int, *, is_moved: bool) -> None:
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
