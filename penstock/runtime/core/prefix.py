"""Names for runs of tokens: each block's hash identifies what it and everything before it holds.

A hash is only a key. A lookup compares the tokens too, so a collision can cost time but never a wrong answer. The router
computes the same hashes to guess which replica holds a prefix.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

TOKEN_BYTES = 4
"""Of a packed token."""

_DIGEST_BYTES = 16
_BLOCK = blake2b(digest_size=_DIGEST_BYTES, person=b"penstock.block")
"""Copied for every block: making one anew takes twice as long."""


class Namespace(NamedTuple):
    """Sequences share blocks only inside one: what besides tokens decides a block's content, and who may see it."""

    salt: str
    adapter: str

    @property
    def hash(self) -> bytes:
        """Parent of a first block. Fields carry their lengths, so that no two namespaces read alike."""
        fields = [text.encode("utf-8", "surrogatepass") for text in self]
        tagged = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
        return blake2b(tagged, digest_size=_DIGEST_BYTES, person=b"penstock.root").digest()


def packed(token_ids: Sequence[int]) -> bytes:
    """Token ids as bytes, the same on every machine: they are kept, compared and hashed as such."""
    words = array("I", token_ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpacked(data: bytes) -> tuple[int, ...]:
    """The token ids that `packed` made bytes of."""
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)


def block_hash(parent: bytes, tokens: bytes) -> bytes:
    """Hash of a full block, its tokens packed, given the hash of the block before it."""
    hasher = _BLOCK.copy()
    hasher.update(parent + tokens)
    return hasher.digest()


def prefix_hashes(token_ids: Sequence[int], namespace: Namespace, num_blocks: int, block_size: int) -> list[bytes]:
    """Hashes of the first blocks of a prompt."""
    hashes, parent = [], namespace.hash
    data, size = packed(token_ids[: num_blocks * block_size]), block_size * TOKEN_BYTES
    for start in range(0, len(data), size):
        parent = block_hash(parent, data[start : start + size])
        hashes.append(parent)
    return hashes


def first_difference(left: bytes, right: bytes) -> int | None:
    """The number of the first packed token that is not the same; None if one is the beginning of the other."""
    for place in range(0, min(len(left), len(right)), TOKEN_BYTES):
        if left[place : place + TOKEN_BYTES] != right[place : place + TOKEN_BYTES]:
            return place // TOKEN_BYTES
    return None


class Content:
    """What a published block holds. A find compares tokens and `parent` (by identity), so no hash is ever trusted alone."""

    __slots__ = ("child", "hash", "parent", "tokens")

    def __init__(self, hash: bytes, tokens: bytes, parent: "Content | Namespace") -> None:
        self.hash = hash
        self.tokens = tokens
        """Packed."""
        self.parent = parent
        self.child: Content | None = None
        """Of the published contents that continue it, the latest."""

    def token(self, place: int) -> int:
        return int.from_bytes(self.tokens[place * TOKEN_BYTES : (place + 1) * TOKEN_BYTES], "little")

    def continues(self, parent: "Content | Namespace", tokens: bytes) -> bool:
        is_child = self.parent is parent or (isinstance(parent, Namespace) and self.parent == parent)
        return is_child and self.tokens == tokens


class Held:
    """Blocks of one group that one holder has, in the order of positions."""

    __slots__ = ("blocks", "first")

    def __init__(self, blocks: list[int] | None = None) -> None:
        self.blocks: list[int] = [] if blocks is None else blocks
        """One list for the holding's life, so readers may keep a reference to it."""
        self.first = 0
        """The first block still held: a window has freed those before it, whose ids mean nothing any more."""


class Holding(Held):
    """What one holder has of the cache: written by the pool alone, read by its holder.

    Blocks of the first group, and how far they are published; blocks of further groups. Empty when made and after a release.
    `tokens` is the holder's own list, which grows; only what is published is taken as final.
    """

    __slots__ = ("hashes", "namespace", "num_published", "others", "state", "tail", "tokens")

    def __init__(self, tokens: list[int], namespace: Namespace) -> None:
        super().__init__()
        self.tokens = tokens
        self.namespace = namespace
        self.others: tuple[Held, ...] = ()
        """By group, the first left out."""
        self.state: object | None = None
        """What it has of the slots for states (`core.kinds.states`)."""
        self.hashes: list[bytes] = []
        """Of full blocks, from the first; a memo of the tokens."""
        self.num_published = 0
        """Blocks offered to others, counted from the first."""
        self.tail: Content | None = None
        """What the last published block holds."""
