"""Blocks offered over TCP: a thread that accepts, and one for each peer that has proved itself.

ask      format 16 | waits 1 | hashes     blocks in that order; with `waits`, also those still to be computed
records  (length 4 | record) ...
alive                                     the rest is still being computed
over                                      no more will come

To a peer on the same machine much goes through memory that both see (`shared.py`), to one on another through memory that it
reads by itself, if both can (`rdma.py`).
"""

import contextlib
import itertools
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from queue import Empty

from penstock.errors import ConfigError
from penstock.runtime.engine.loop.inbox import Inbox
from penstock.runtime.engine.peers import rdma, shared
from penstock.runtime.engine.peers.channel import GENERATION_BYTES, Channel, ChannelError, StaleError, greet
from penstock.runtime.engine.peers.offers import BlockRead, HandedOut, ReadOn
from penstock.runtime.engine.tiers.record import DIGEST_BYTES, KVRecord, key_of, record_parts

LOGGER = logging.getLogger(__name__)

ASK, RECORDS, ALIVE, OVER, SHARED, MAPPED, PLACED, TAKEN = range(1, 9)
MAX_PEERS = 128
FRAME_BYTES = 16 << 20
"""Of records sent together: the reader lays them down while the next ones travel."""
LEAST_SHARED_BYTES = 4 << 20
"""Of records that one peer asks for: with fewer, making shared memory is not worth it."""
ALIVE_S = 0.5
GRACE_S = 2.0
"""For a prompt to arrive that a peer waits for."""
BUSY_S = 60.0
"""For the engine to say what it has: a step may take long."""
IDLE_S = 120.0
"""A peer that asks for nothing for so long is let go."""
SIZE = struct.Struct("<I")

Put = Callable[[BlockRead | ReadOn], None]


class BlockServer:
    """`port` and `generation` are its address, for this life of the engine alone."""

    def __init__(self, host: str, key: bytes, format: bytes, put: Put) -> None:
        """`put` hands messages to the engine's thread."""
        self.generation = secrets.token_bytes(GENERATION_BYTES)
        self.num_refused = 0
        """Peers that did not prove themselves or meant another engine."""
        self._key = key
        self._format = format
        self._put = put
        self._ids = itertools.count()
        self._channels: set[Channel] = set()
        self.num_shared = 0
        """Peers that read from memory shared with them."""
        self._spares = rdma.SpareSegments(FRAME_BYTES)
        self._lock = threading.Lock()
        try:
            self._listener = socket.create_server((host, 0))
        except OSError as error:
            raise ConfigError(f"blocks cannot be offered on {host}: {error}; choose another --host") from error
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="kv-offers", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for channel in self._channels:
                channel.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if len(self._channels) >= MAX_PEERS:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="kv-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = greet(connection, self._key, self.generation)
        except OSError as error:
            connection.close()
            self.num_refused += 1
            level = logging.DEBUG if isinstance(error, StaleError | TimeoutError) else logging.WARNING
            LOGGER.log(level, "a peer that asked for blocks was turned away: %s", error)
            return
        with self._lock:
            self._channels.add(channel)
        way = _RecordsWay(channel, self._spares)
        try:
            channel.wait_at_most(IDLE_S)
            while True:
                frame = channel.receive()
                if frame.kind != ASK or (len(frame.payload) - 1) % DIGEST_BYTES or len(frame.payload) <= DIGEST_BYTES:
                    return
                self._answer(channel, way, bytes(frame.payload))
        except OSError:
            return
        finally:
            with self._lock:
                self._channels.discard(channel)
            channel.close()
            way.close()

    def _answer(self, channel: Channel, way: "_RecordsWay", asked: bytes) -> None:
        format, waits, names = asked[:DIGEST_BYTES], bool(asked[DIGEST_BYTES]), asked[DIGEST_BYTES + 1 :]
        hashes = tuple(names[begin : begin + DIGEST_BYTES] for begin in range(0, len(names), DIGEST_BYTES))
        if format == self._format and hashes:
            for records in self._read(hashes, channel, waits):
                self.num_shared += way.prepare(len(hashes) * records[0].num_bytes)
                most = max(FRAME_BYTES // (records[0].num_bytes + SIZE.size), 1)
                for begin in range(0, len(records), most):
                    way.send(list(self._encoded(records[begin : begin + most])))
        way.finish()
        channel.send(OVER)

    def _read(self, hashes: tuple[bytes, ...], channel: Channel, waits: bool) -> Iterator[tuple[KVRecord, ...]]:
        news: Inbox[HandedOut] = Inbox()
        reader_id = next(self._ids)
        self._put(BlockRead(reader_id, hashes, news.put))
        is_expected, waited_s, most_s = False, 0.0, BUSY_S
        try:
            while is_expected or waited_s < most_s:
                try:
                    handed = news.take(ALIVE_S)
                except Empty:
                    waited_s += ALIVE_S
                    channel.send(ALIVE)
                    continue
                is_expected, waited_s, most_s = handed.is_expected, 0.0, GRACE_S
                if handed.blocks is not None:
                    yield handed.blocks.wait()
                if handed.is_over or not (waits or handed.blocks or is_expected):
                    return
                if handed.blocks is not None:
                    self._put(ReadOn(reader_id))
        finally:
            self._put(ReadOn(reader_id, is_over=True))

    def _encoded(self, records: tuple[KVRecord, ...]) -> Iterator[bytes | memoryview]:
        for record in records:
            head, kv = record_parts(key_of(self._format, record.hash), record)
            yield SIZE.pack(len(head) + len(kv))
            yield head
            yield kv


class _RecordsWay:
    """How records go to one peer: through the connection, or through memory that both see."""

    def __init__(self, channel: Channel, spares: rdma.SpareSegments) -> None:
        self._channel = channel
        self._spares = spares
        self._segment: shared.SharedSegment | None = None
        self._is_open = channel.is_local or rdma.is_installed()
        """Shared memory was not tried yet, and might do."""

    def prepare(self, num_bytes: int) -> bool:
        """So much is asked for; returns whether memory is shared from now on that was not before."""
        if not self._is_open or num_bytes < LEAST_SHARED_BYTES:
            return False
        segment = shared.create(FRAME_BYTES) if self._channel.is_local else self._spares.take()
        self._is_open = segment is None and not self._channel.is_local  # one may be ready next time
        if segment is None:
            return False
        try:
            self._channel.send(SHARED, segment.words)
            is_mapped = self._take(MAPPED) == b"\1"
        finally:
            segment.hide()
        if is_mapped:
            self._segment = segment
        else:
            segment.close()
        return is_mapped

    def send(self, parts: list[bytes | memoryview]) -> None:
        segment = self._segment
        if segment is None or sum(map(len, parts)) > segment.half_bytes:
            self._channel.send(RECORDS, *parts)
            return
        self.finish(shared.HALVES - 1)
        self._channel.send(PLACED, segment.place(parts))

    def finish(self, most: int = 0) -> None:
        """All that was placed has been taken, but for so many halves."""
        while self._segment is not None and self._segment.num_placed > most:
            self._take(TAKEN)
            self._segment.num_placed -= 1

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()

    def _take(self, kind: int) -> bytes:
        frame = self._channel.receive()
        if frame.kind != kind:
            raise ChannelError("a frame that nobody asked for")
        return bytes(frame.payload)
