"""What ranks send each other of a step, as bytes: msgpack, checked against the types of the values. Nothing that runs code."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

from penstock.errors import RankLostError
from penstock.runtime.core.batch import Batch, StepOutput

T = TypeVar("T")


class FilledMasks(NamedTuple):
    """Which tokens may be drawn, filled in: what the first rank's engine says, for every rank."""

    chunks: tuple[int, ...]
    num_rows: int
    bits: bytes

    def fill(self, bits: memoryview) -> None:
        bits.cast("B")[:] = self.bits

    def split(self, parts: Sequence[Batch]) -> "list[FilledMasks | None]":
        """The masks of each of the parts that follow each other in a batch."""
        split: list[FilledMasks | None] = []
        begin = position = 0
        row_bytes = len(self.bits) // max(self.num_rows, 1)
        for part in parts:
            own = tuple(index - begin for index in self.chunks if begin <= index < begin + len(part.chunks))
            num_rows = sum(1 + part.chunks[index].num_drafts for index in own)
            end = position + num_rows * row_bytes
            split.append(FilledMasks(own, num_rows, self.bits[position:end]) if own else None)
            begin, position = begin + len(part.chunks), end
        return split


class AdapterWord(NamedTuple):
    """What ranks are to do about an adapter."""

    kind: Literal["read", "place", "remove"]
    path: str
    digest: str = ""
    number: int = 0
    """Under which a rank says what came of reading."""


class Announcement(NamedTuple):
    """A step as it is sent to every rank, or word of an adapter. Without either there are no more."""

    batch: Batch | None = None
    masks: FilledMasks | None = None
    adapter: AdapterWord | None = None


NO_MORE = Announcement()


def encode(value: Announcement | StepOutput) -> bytes:
    data: bytes = _encoder().encode(value)
    return data


def decode(frame: bytes, type_: type[T]) -> T:
    try:
        value: T = _decoder(type_).decode(frame)  # type: ignore[arg-type]  # classes are hashable
        return value
    except Exception as error:  # whatever a malformed frame makes of the decoder
        raise RankLostError(f"a frame between ranks is malformed: {type(error).__name__}") from error


@cache
def _encoder() -> Any:
    from msgspec.msgpack import Encoder  # one engine in one process needs none

    return Encoder()


@cache
def _decoder(type_: type) -> Any:
    from msgspec.msgpack import Decoder

    return Decoder(type_)
