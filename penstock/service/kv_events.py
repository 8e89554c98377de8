"""What a server reports to a router of its prefix cache: hashes of the blocks that can be found there, as they come and go.

`GET /kv/events` is one frame, with `?follow=1` a stream of them. The first, and any that follows a gap, holds all there is;
the others what changed since the one before:

    kind     1 byte    S all there is, D what changed
    number   4 bytes   one more than the frame before; a gap means that something was missed
    counts   2 x 4     blocks published, blocks removed
    hashes   8 each    the beginnings of the engine's own block hashes

The same hashes, after the number of tokens, answer a request that is sent with `x-penstock-blocks`: those of its prompt's
blocks that could be found in a cache.

A server whose blocks other replicas may fetch says so to a router it knows, beside its metrics (`x-penstock-offer`). A router
then names such a server in a request to another one (`x-penstock-peer`), or has it compute a prompt and answer nothing
(`x-penstock-prefill`).
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

BLOCKS_HEADER = b"x-penstock-blocks"
OFFER_HEADER = b"x-penstock-offer"
PEER_HEADER = b"x-penstock-peer"
PREFILL_HEADER = b"x-penstock-prefill"
EVENTS_PATH = "/kv/events"
HASH_BYTES = 8
MAX_HASHES = 1 << 24
"""In one frame."""

_HEAD = struct.Struct("<cIII")
_TOKENS = struct.Struct("<I")


class BlockOffer(NamedTuple):
    """What a server offers to replicas, for this life of its engine."""

    role: str
    port: int
    generation: str
    block_bytes: int
    block_size: int
    device: str
    """What it computes on; processes of one machine may share it."""
    prompt_tokens_s: float = 0.0
    """Prompt tokens it computes in a second, as measured; 0 if nothing was."""
    fetched_bytes_s: float = 0.0
    """Bytes of blocks it fetches in a second, likewise."""

    def encode(self) -> bytes:
        return " ".join(map(str, self)).encode("ascii")

    def peer(self, host: str, *, computes: bool) -> bytes:
        """What a replica is told that is to fetch blocks from it."""
        return f"{host}:{self.port}/{self.generation}/{'c' if computes else 'h'}".encode("ascii")


def read_offer(value: bytes) -> BlockOffer | None:
    """None for what is no offer."""
    try:
        role, port, generation, block_bytes, block_size, device, *rates = value.decode("ascii").split(" ")
        computed_s, fetched_s = map(float, rates)
        return BlockOffer(role, int(port), generation, int(block_bytes), int(block_size), device, computed_s, fetched_s)
    except ValueError:
        return None


class Frame(NamedTuple):
    is_whole: bool
    number: int
    published: tuple[bytes, ...]
    removed: tuple[bytes, ...]


def frame(is_whole: bool, number: int, published: bytes, removed: bytes = b"") -> bytes:
    """`published` and `removed` are hashes one after the other."""
    counts = len(published) // HASH_BYTES, len(removed) // HASH_BYTES
    return _HEAD.pack(b"S" if is_whole else b"D", number & 0xFFFFFFFF, *counts) + published + removed


class FrameReader:
    """Frames from parts of a stream."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Raises ValueError for what is no such stream."""
        rest = self._rest
        rest += data
        frames = []
        while len(rest) >= _HEAD.size:
            kind, number, num_published, num_removed = _HEAD.unpack_from(rest)
            if kind not in (b"S", b"D") or num_published + num_removed > MAX_HASHES:
                raise ValueError("this is no stream of block events")
            size = _HEAD.size + (num_published + num_removed) * HASH_BYTES
            if len(rest) < size:
                break
            hashes = split(bytes(rest[_HEAD.size : size]))
            frames.append(Frame(kind == b"S", number, hashes[:num_published], hashes[num_published:]))
            del rest[:size]
        return frames


def split(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES))


def prompt_blocks(num_tokens: int, hashes: Iterable[bytes]) -> bytes:
    """The answer to a request that was only asked about."""
    return _TOKENS.pack(num_tokens) + b"".join(one[:HASH_BYTES] for one in hashes)


def read_prompt_blocks(data: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Raises ValueError for what is no such answer."""
    if len(data) < _TOKENS.size or (len(data) - _TOKENS.size) % HASH_BYTES:
        raise ValueError("this is no list of blocks")
    return _TOKENS.unpack_from(data)[0], split(data[_TOKENS.size :])
