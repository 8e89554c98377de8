"""Blocks of other engines, as a tier: fetched by name while that is faster than computing, verified one by one.

A fetch ends early for any doubt, and says which. What has come by then is used; the rest is computed here.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.runtime.engine.peers import rdma, shared
from penstock.runtime.engine.peers.channel import Channel, ChannelError, PeerFrame, StaleError, connect
from penstock.runtime.engine.peers.counts import FetchEnd
from penstock.runtime.engine.peers.server import (
    ALIVE,
    ASK,
    FRAME_BYTES,
    MAPPED,
    OVER,
    PLACED,
    RECORDS,
    SHARED,
    SIZE,
    TAKEN,
)
from penstock.runtime.engine.tiers.policy import Rates
from penstock.runtime.engine.tiers.record import KVRecord, decode_record, key_of

MAX_FETCHES = 16
"""At once; what comes beyond them is computed."""
SILENT_S = 3.0
"""A peer that sends nothing at all for so long is taken for dead: one that computes says that it lives."""
LEAST_PATIENCE_S = 2.0
PATIENCE = 3.0
"""Times that computing the rest here would take, before a peer that sends no blocks is given up."""
MAX_IDLE = 4
"""Connections to one peer kept for later."""
_PEER = re.compile(r"(?P<host>[0-9A-Za-z.:\[\]-]{1,253}):(?P<port>\d{1,5})/(?P<generation>[0-9a-f]{32})/(?P<mode>[hc])")


class Peer(NamedTuple):
    """Where blocks of a prompt are, or will be; the generation is that engine's, for one life."""

    host: str
    port: int
    generation: bytes
    computes: bool = False
    """The prompt is being computed there: worth waiting for."""

    def encode(self) -> str:
        return f"{self.host}:{self.port}/{self.generation.hex()}/{'c' if self.computes else 'h'}"


def read_peer(text: str) -> Peer | None:
    """None for what names no peer."""
    found = _PEER.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        return None
    return Peer(found["host"].strip("[]"), int(found["port"]), bytes.fromhex(found["generation"]), found["mode"] == "c")


class PeerFetch(NamedTuple):
    """Blocks to be fetched from a peer, the first first. Everything here is called by other threads than the engine's."""

    peer: Peer
    hashes: Sequence[bytes]
    compute_s: float
    """Seconds that computing them here would take."""
    is_wanted: Callable[[], bool]
    on_part: Callable[[list[KVRecord]], None]
    on_over: Callable[[FetchEnd], None]


class _DamagedError(ChannelError):
    """A record that is not what was asked for."""


_FAULTS: tuple[tuple[type[OSError], str], ...] = (
    (StaleError, "stale"),
    (_DamagedError, "damaged"),
    (ChannelError, "refused"),
    (TimeoutError, "slow"),
    (ConnectionRefusedError, "unreachable"),
    (OSError, "lost"),
)
"""What an error says of a fetch: the first row that it belongs to."""


class RemoteTier:
    """`fetch` is for the engine's thread."""

    def __init__(self, key: bytes, format: bytes) -> None:
        self.rates = Rates()
        self._key = key
        self._format = format
        self._threads = ThreadPoolExecutor(MAX_FETCHES, thread_name_prefix="kv-fetch")
        self._idle: dict[Peer, list[Channel]] = {}
        self._open: set[Channel] = set()
        self._shared: dict[Channel, shared.SharedSegment] = {}
        """Memory that the peer at the other end writes records to."""
        self._spares = rdma.SpareSegments(FRAME_BYTES)
        self._lock = threading.Lock()
        self._num_active = 0

    def fetch(self, fetch: PeerFetch) -> None:
        """Begin a fetch; it is over at once if too many are under way."""
        with self._lock:
            is_free = self._num_active < MAX_FETCHES
            self._num_active += is_free
        if not is_free:
            fetch.on_over(FetchEnd("busy"))
            return
        self._threads.submit(self._run, fetch)

    def close(self) -> None:
        with self._lock:
            for channel in self._open:
                channel.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, fetch: PeerFetch) -> None:
        num_got = num_bytes = 0
        seconds = 0.0
        fault = ""
        try:
            for records, size, took_s in self._records(fetch):
                num_got += len(records)
                num_bytes += size
                seconds += took_s
                fetch.on_part(records)
            fault = "" if num_got == len(fetch.hashes) else "absent"
        except OSError as error:
            fault = next(name for kind, name in _FAULTS if isinstance(error, kind))
        finally:
            with self._lock:
                self._num_active -= 1
            fetch.on_over(FetchEnd(fault, num_bytes, seconds))

    def _records(self, fetch: PeerFetch) -> Iterator[tuple[list[KVRecord], int, float]]:
        """Parts as they come, with their bytes and the seconds of receiving them."""
        peer, hashes = fetch.peer, fetch.hashes
        patience_s = max(LEAST_PATIENCE_S, PATIENCE * fetch.compute_s)
        channel, frame = self._ask(peer, hashes)
        is_whole = False
        try:
            num_got, last_s = 0, time.monotonic()
            while frame.kind != OVER and fetch.is_wanted():
                now = time.monotonic()
                if frame.kind in (RECORDS, PLACED):
                    records, num_bytes = self._taken(channel, frame, hashes[num_got:])
                    num_got, last_s = num_got + len(records), now
                    yield records, num_bytes, frame.seconds + time.monotonic() - now
                elif frame.kind == SHARED:
                    self._map(channel, bytes(frame.payload))
                elif frame.kind != ALIVE:
                    raise ChannelError("a frame of no known kind")
                elif now - last_s > patience_s:
                    raise TimeoutError("computing is faster by now")
                frame = channel.receive()
            is_whole = frame.kind == OVER
        finally:
            self._give_back(peer, channel, is_whole)

    def _ask(self, peer: Peer, hashes: Sequence[bytes]) -> tuple[Channel, PeerFrame]:
        """A channel on which the blocks are asked for, and the first frame of the answer."""
        address = peer._replace(computes=False)
        words = (self._format, bytes([peer.computes]), *hashes)
        with self._lock:
            kept = self._idle.get(address, [])
            channel = kept.pop() if kept else None
        if channel is not None:
            try:
                channel.send(ASK, *words)
                return channel, channel.receive()
            except ConnectionError:  # closed while it lay idle
                self._give_back(peer, channel, False)
        channel = connect(peer.host, peer.port, self._key, peer.generation)
        with self._lock:
            self._open.add(channel)
        try:
            channel.wait_at_most(SILENT_S)
            channel.send(ASK, *words)
            return channel, channel.receive()
        except OSError:
            self._give_back(peer, channel, False)
            raise

    def _map(self, channel: Channel, words: bytes) -> None:
        is_far = words.startswith(rdma.MARK)
        segment = self._spares.open(words) if is_far else shared.open_segment(words)
        if segment is not None:
            self._shared[channel] = segment
        channel.send(MAPPED, bytes([segment is not None]))

    def _taken(self, channel: Channel, frame: PeerFrame, hashes: Sequence[bytes]) -> tuple[list[KVRecord], int]:
        """Records of a frame, and how many bytes they have; what lies in shared memory is copied, and may be written over."""
        if frame.kind == RECORDS:
            return self._verified(hashes, memoryview(frame.payload)), len(frame.payload)
        if channel not in self._shared:
            raise ChannelError("records in memory that is not shared")
        with self._shared[channel].view(bytes(frame.payload)) as view:
            copied = bytearray(view)
        channel.send(TAKEN)
        return self._verified(hashes, memoryview(copied)), len(copied)

    def _verified(self, hashes: Sequence[bytes], payload: memoryview) -> list[KVRecord]:
        records: list[KVRecord] = []
        begin = 0
        while begin < len(payload):
            if len(records) == len(hashes) or begin + SIZE.size > len(payload):
                raise _DamagedError("more came than was asked for")
            (size,) = SIZE.unpack_from(payload, begin)
            hash = hashes[len(records)]
            data = payload[begin + SIZE.size : begin + SIZE.size + size]
            record = decode_record(key_of(self._format, hash), hash, data)
            if record is None:
                raise _DamagedError("a record is not the one that was asked for")
            records.append(record)
            begin += SIZE.size + size
        return records

    def _give_back(self, peer: Peer, channel: Channel, is_whole: bool) -> None:
        address = peer._replace(computes=False)
        with self._lock:
            if is_whole:
                for other in [one for one in self._idle if one[:2] == address[:2] and one != address]:
                    for stale in self._idle.pop(other):
                        self._drop(stale)
                kept = self._idle.setdefault(address, [])
                if len(kept) < MAX_IDLE:
                    kept.append(channel)
                    return
            self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        self._open.discard(channel)
        segment = self._shared.pop(channel, None)
        if segment is not None:
            segment.close()
        with contextlib.suppress(OSError):
            channel.close()
