"""Frames between two engines that know one key: authenticated, bounded, in order.

    offering:  magic | generation | nonce
    fetching:  generation | nonce | proof
    offering:  proof
    then both: length 4 | kind 1 | payload | seal 16

The proofs are of the key over both nonces and the generation, which an engine draws when it starts: whoever means an earlier
engine at the same address is turned away. Every frame is sealed with a key of this connection alone and with its number, so
that a frame changed, dropped, repeated or sent by somebody else ends the connection. Between processes of one machine nobody
can change what the kernel carries: there only the beginning of a frame is sealed, and records have their own checksums.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import time
from hashlib import blake2b
from typing import NamedTuple

MAGIC = b"PENSTOCK-KV-1\n"
GENERATION_BYTES = 16
NONCE_BYTES = 16
PROOF_BYTES = 32
SEAL_BYTES = 16
MAX_PAYLOAD_BYTES = 64 << 20
GREET_S = 5.0
"""How long a peer may take to prove itself."""
LOCAL_SEALED = 4096
"""Bytes of a payload that are sealed between processes of one machine."""
_HEAD = struct.Struct("<IB")


class ChannelError(OSError):
    """The peer is not who it should be, or what came is not what it sent."""


class StaleError(ChannelError):
    """Another engine than the one that was meant is there now."""


class PeerFrame(NamedTuple):
    kind: int
    payload: bytes | bytearray
    seconds: float = 0.0
    """From its first bytes to its last."""


class Channel:
    """One end of a connection whose peer has proved itself. One thread sends, one receives."""

    def __init__(self, connection: socket.socket, key: bytes, names: tuple[bytes, bytes]) -> None:
        """`names` of the directions, our sending first."""
        self._connection = connection
        self._num_sealed = LOCAL_SEALED if _is_local(connection) else MAX_PAYLOAD_BYTES
        self._keys = tuple(_proof(key, b"frames", name) for name in names)
        self._num_sent = self._num_received = 0

    @property
    def is_local(self) -> bool:
        """Both ends are on one machine."""
        return self._num_sealed == LOCAL_SEALED

    def send(self, kind: int, *parts: bytes | memoryview) -> None:
        """Raises OSError where the peer is gone."""
        payload = b"".join(parts)
        head = _HEAD.pack(len(payload), kind)
        seal = self._seal(self._keys[0], self._num_sent, head, payload)
        self._num_sent += 1
        self._connection.sendall(head)
        self._connection.sendall(payload)
        self._connection.sendall(seal)

    def receive(self) -> PeerFrame:
        """Raises OSError where the peer is gone, is silent for too long, or sent what is no frame."""
        head = _exactly(self._connection, _HEAD.size)
        begun_s = time.monotonic()
        size, kind = _HEAD.unpack(head)
        if size > MAX_PAYLOAD_BYTES:
            raise ChannelError(f"a frame of {size:,} bytes; at most {MAX_PAYLOAD_BYTES:,} are taken")
        payload = _received(self._connection, size)
        seal = self._seal(self._keys[1], self._num_received, head, payload)
        if not hmac.compare_digest(seal, _exactly(self._connection, SEAL_BYTES)):
            raise ChannelError("a frame is not as it was sent")
        self._num_received += 1
        return PeerFrame(kind, payload, time.monotonic() - begun_s)

    def wait_at_most(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _seal(self, key: bytes, number: int, head: bytes, payload: bytes | bytearray) -> bytes:
        seal = blake2b(head, digest_size=SEAL_BYTES, key=key, salt=number.to_bytes(16, "little"))
        seal.update(memoryview(payload)[: self._num_sealed])
        return seal.digest()


def greet(connection: socket.socket, key: bytes, generation: bytes) -> Channel:
    """The channel to whoever has connected; raises OSError where it does not prove itself."""
    connection.settimeout(GREET_S)
    own = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(MAGIC + generation + own)
    said = _exactly(connection, GENERATION_BYTES + NONCE_BYTES + PROOF_BYTES)
    meant, nonce, proof = said[:GENERATION_BYTES], said[GENERATION_BYTES:-PROOF_BYTES], said[-PROOF_BYTES:]
    shared = meant + own + nonce
    if not hmac.compare_digest(proof, _proof(key, b"fetching", shared)):
        raise ChannelError("a peer does not know the key")
    if meant != generation:
        raise StaleError("a peer means an earlier engine")
    connection.sendall(_proof(key, b"offering", shared))
    return Channel(connection, _proof(key, b"channel", shared), (b"offering", b"fetching"))


def connect(host: str, port: int, key: bytes, generation: bytes) -> Channel:
    """The channel to the engine of that generation; raises OSError where there is none."""
    connection = socket.create_connection((host, port), GREET_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(GREET_S)
        said = _exactly(connection, len(MAGIC) + GENERATION_BYTES + NONCE_BYTES)
        if not said.startswith(MAGIC):
            raise ChannelError("no engine offers blocks there")
        if said[len(MAGIC) : -NONCE_BYTES] != generation:
            raise StaleError("another engine is there than the one that had the blocks")
        own = secrets.token_bytes(NONCE_BYTES)
        shared = generation + said[-NONCE_BYTES:] + own
        connection.sendall(generation + own + _proof(key, b"fetching", shared))
        if not hmac.compare_digest(_answered(connection), _proof(key, b"offering", shared)):
            raise ChannelError("the peer does not know the key")
    except BaseException:
        connection.close()
        raise
    return Channel(connection, _proof(key, b"channel", shared), (b"fetching", b"offering"))


def _answered(connection: socket.socket) -> bytes:
    try:
        return _exactly(connection, PROOF_BYTES)
    except ConnectionError:
        raise ChannelError(
            "the peer turned us away; all replicas and the router need one PENSTOCK_REPLICA_KEY"
        ) from None


def _is_local(connection: socket.socket) -> bool:
    host = str(connection.getpeername()[0])
    return host == "::1" or host.startswith("127.")


def _proof(key: bytes, role: bytes, shared: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + shared, "sha256")


def _exactly(connection: socket.socket, size: int) -> bytes:
    return bytes(_received(connection, size))


def _received(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        view = view[count:]
    return data
