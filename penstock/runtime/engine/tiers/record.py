"""One block of KV as bytes: the same in host memory, on a disk and on a wire.

    | magic 4 | crc 4 | key 16 | hash 16 | tokens' bytes 4 | KV bytes 4 | tokens | KV of all layers |

The key names the content *and* the format, so a changed model, number type or block size cannot be hit. The checksum, CRC-32
of the standard library, is over all that follows it. A record that is not what was asked for is a miss, never an answer.
"""

import struct
import zlib
from hashlib import blake2b
from typing import NamedTuple

MAGIC = b"PKV2"
RECORD_ORDER = "layer, keys then values then scales, position, kv head, number"
"""Of the numbers in a record, whatever the order that a runner has them in."""
HEAD = struct.Struct("<4sI16s16sII")
DIGEST_BYTES = 16
_CHECKED_FROM = 8


class KVRecord(NamedTuple):
    """A block's tokens, packed, and its keys and values in the order of every record."""

    hash: bytes
    tokens: bytes
    kv: bytes | memoryview

    @property
    def num_bytes(self) -> int:
        return HEAD.size + len(self.tokens) + len(self.kv)


def format_digest(*parts: object) -> bytes:
    """Of everything besides tokens that decides what a block's bytes are: weights, number types, block size, positions."""
    fields = [str(part).encode() for part in parts]
    tagged = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    return blake2b(tagged, digest_size=DIGEST_BYTES, person=b"penstock.format").digest()


def key_of(format: bytes, hash: bytes) -> bytes:
    return blake2b(format + hash, digest_size=DIGEST_BYTES, person=b"penstock.kv").digest()


def record_parts(key: bytes, record: KVRecord) -> tuple[bytes, bytes | memoryview]:
    """Of a record as bytes: all before the keys and values, and those, which are not copied."""
    head = key + record.hash + struct.pack("<II", len(record.tokens), len(record.kv)) + record.tokens
    return MAGIC + zlib.crc32(record.kv, zlib.crc32(head)).to_bytes(4, "little") + head, record.kv


def encode_record(key: bytes, record: KVRecord) -> bytes:
    return b"".join(record_parts(key, record))


def decode_record(key: bytes, hash: bytes, data: bytes | memoryview) -> KVRecord | None:
    """None if the bytes are not that record, whole and unchanged. Of a view, keys and values are one too."""
    if len(data) < HEAD.size:
        return None
    magic, checksum, own_key, own_hash, num_tokens, num_kv = HEAD.unpack_from(data)
    is_named = magic == MAGIC and own_key == key and own_hash == hash
    if not is_named or len(data) != HEAD.size + num_tokens + num_kv:
        return None
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        return None
    begin = HEAD.size + num_tokens
    return KVRecord(hash, bytes(data[HEAD.size : begin]), data[begin:])
