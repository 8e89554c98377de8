"""What ranks tell each other of a step, as bytes: msgpack, checked against the types of the values. Nothing that runs code."""

from typing import NamedTuple

import msgspec

from penstock.core.batch import Batch, StepOutput
from penstock.errors import RankLostError


class FilledMasks(NamedTuple):
    """Which tokens may be drawn, filled in: what the first rank's engine says, for every rank."""

    chunks: tuple[int, ...]
    num_rows: int
    bits: bytes

    def fill(self, bits: memoryview) -> None:
        bits.cast("B")[:] = self.bits


class Announcement(NamedTuple):
    """A step as every rank is told it. Without a batch there are no more."""

    batch: Batch | None
    masks: FilledMasks | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Announcement] = msgspec.msgpack.Decoder(Announcement)
_output_decoder: msgspec.msgpack.Decoder[StepOutput] = msgspec.msgpack.Decoder(StepOutput)


def encode_step(batch: Batch | None, masks: FilledMasks | None = None) -> bytes:
    return _encoder.encode(Announcement(batch, masks))


def decode_step(frame: bytes) -> Announcement:
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RankLostError(f"a frame between ranks is malformed: {type(error).__name__}") from error


def encode_output(output: StepOutput) -> bytes:
    return _encoder.encode(output)


def decode_output(frame: bytes) -> StepOutput:
    try:
        return _output_decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RankLostError(f"a frame between ranks is malformed: {type(error).__name__}") from error
