"""The messages between the server's process and the engine's: msgpack, checked against these types on arrival.

Nothing that can run code is ever read from a socket. A frame that does not fit its type is an error of the sender.
"""

from typing import TypeVar

import msgspec

from penstock.errors import EngineError, RequestError
from penstock.runtime.core.batch import Delta
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import SchedulerLoad
from penstock.runtime.engine.adapters.gate import AdapterAnswer, AdapterCounts, AdapterOrder
from penstock.runtime.engine.grammar_state import GrammarCounts, GrammarTime
from penstock.runtime.engine.machine import Facts, Vector
from penstock.runtime.engine.observer import EngineView
from penstock.runtime.engine.peers.counts import TransferCounts
from penstock.runtime.engine.tiers.news import TierCounts
from penstock.runtime.engine.tiers.sessions import CacheAnswer, CacheOrder

T = TypeVar("T")
MAX_FRAME_BYTES = 64 << 20
UNREADABLE = (msgspec.MsgspecError, RequestError, ValueError, RecursionError)


class Submit(msgspec.Struct, tag="submit", array_like=True, frozen=True):
    request: Request


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    request_id: int
    choice: int | None = None


class EmbedPrompts(msgspec.Struct, tag="embed", array_like=True, frozen=True):
    request_id: int
    prompts: tuple[tuple[int, ...], ...]


class LookCommand(msgspec.Struct, tag="look", array_like=True, frozen=True):
    """Send views for so many seconds."""

    seconds: float


class FollowBlocks(msgspec.Struct, tag="follow", array_like=True, frozen=True):
    """Tell from now on which blocks can be found in the prefix cache, beginning with all of them."""


class OrderAdapter(msgspec.Struct, tag="adapter", array_like=True, frozen=True):
    """Read an adapter, or forget it once nobody uses it."""

    order: AdapterOrder


class OrderCache(msgspec.Struct, tag="cache", array_like=True, frozen=True):
    """List, pin, drop, export or import sessions."""

    order: CacheOrder


class Stop(msgspec.Struct, tag="stop", array_like=True, frozen=True):
    """End the process."""


Command = Submit | Cancel | EmbedPrompts | LookCommand | FollowBlocks | OrderAdapter | OrderCache | Stop
"""To the engine."""


class Phase(msgspec.Struct, tag="phase", array_like=True, frozen=True):
    """A part of the start is over."""

    name: str
    seconds: float


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    facts: Facts


class StepReport(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """All results of one turn of the engine's loop, in one frame for all sequences."""

    time_s: float
    """When the step ended, on the monotonic clock both processes share."""
    deltas: tuple[Delta, ...]
    load: SchedulerLoad
    num_steps: int
    prompts: tuple[tuple[int, int, int], ...] = ()
    """Prompts partly computed: request id, tokens done, tokens in all."""
    grammars: GrammarCounts | None = None
    """What grammars have cost so far; none if there were none."""
    matched: tuple[GrammarTime, ...] = ()
    """What the grammars cost of requests that ended in this turn."""
    adapters: AdapterCounts | None = None
    """Of an engine that serves adapters."""
    tiers: TierCounts | None = None
    """Of one that keeps blocks beyond its device."""
    transfers: TransferCounts | None = None
    """Of an engine with peers."""


class Ordered(msgspec.Struct, tag="ordered", array_like=True, frozen=True):
    """What came of orders about adapters, and about sessions."""

    adapters: tuple[AdapterAnswer, ...]
    sessions: tuple[CacheAnswer, ...]


class Beat(msgspec.Struct, tag="beat", array_like=True, frozen=True):
    """Proof of life, sent by a thread of its own: a long step does not stop it, a stopped process does."""

    num_loops: int
    is_busy: bool


class Embedded(msgspec.Struct, tag="embedded", array_like=True, frozen=True):
    request_id: int
    vectors: tuple[Vector, ...]
    message: str = ""
    """Why there are none."""


class Seen(msgspec.Struct, tag="seen", array_like=True, frozen=True):
    view: EngineView


class BlocksChanged(msgspec.Struct, tag="blocks", array_like=True, frozen=True):
    """Hashes of blocks, the beginning of each, one after the other."""

    is_whole: bool
    """`published` are all there are."""
    published: bytes = b""
    removed: bytes = b""


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The engine's last message. `is_config` distinguishes a wrong setting from a fault of ours."""

    message: str
    is_config: bool


Report = Phase | Ready | StepReport | Ordered | Beat | Embedded | Seen | BlocksChanged | Failed
"""From the engine."""

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def encode(message: Command | Report) -> bytes:
    return _encoder.encode(message)


def decode_command(frame: bytes) -> Command:
    return _decoded(_command_decoder, frame)


def decode_report(frame: bytes) -> Report:
    return _decoded(_report_decoder, frame)


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes) -> T:
    try:
        return decoder.decode(frame)
    except UNREADABLE as error:
        raise EngineError(f"a frame between server and engine is malformed: {type(error).__name__}") from error
