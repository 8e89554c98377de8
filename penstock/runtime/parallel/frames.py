"""What ranks tell each other of a step, as bytes: msgpack, checked against the types of the values. Nothing that runs code."""

import msgspec

from penstock.core.batch import Batch, StepOutput
from penstock.errors import RankLostError

_encoder = msgspec.msgpack.Encoder()
_batch_decoder: msgspec.msgpack.Decoder[Batch | None] = msgspec.msgpack.Decoder(Batch | None)
_output_decoder: msgspec.msgpack.Decoder[StepOutput] = msgspec.msgpack.Decoder(StepOutput)


def encode_batch(batch: Batch | None) -> bytes:
    """None says that there are no more."""
    return _encoder.encode(batch)


def decode_batch(frame: bytes) -> Batch | None:
    try:
        return _batch_decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RankLostError(f"a frame between ranks is malformed: {type(error).__name__}") from error


def encode_output(output: StepOutput) -> bytes:
    return _encoder.encode(output)


def decode_output(frame: bytes) -> StepOutput:
    try:
        return _output_decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RankLostError(f"a frame between ranks is malformed: {type(error).__name__}") from error
