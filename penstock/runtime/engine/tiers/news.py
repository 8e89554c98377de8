"""What crosses threads and layers around tiers: what was read, copied or done, what was counted, what a prompt was given."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.runtime.core.prefix import Holding, Namespace
from penstock.runtime.core.request import Request
from penstock.runtime.engine.tiers.record import KVRecord
from penstock.runtime.engine.tiers.sessions import CacheAnswer, KeptSession


class TierCounts(NamedTuple):
    """Since the start; bytes are those of records there now."""

    stored_blocks: int = 0
    loaded_blocks: int = 0
    """Blocks that came back to the device."""
    declined_blocks: int = 0
    """Blocks that a tier had and that were computed all the same: that was faster."""
    faults: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    swapped_blocks: int = 0
    """Of the loaded ones, those of preempted sequences."""
    canaries: int = 0
    """Loads that were read back and compared."""
    host_blocks: int = 0
    """Loaded from host memory; the others came from the disk."""
    attached: int = 0
    """Requests that waited for the load of another."""


class TierHit(NamedTuple):
    """What tiers gave a prompt, in tokens, and why they gave no more."""

    host: int = 0
    disk: int = 0
    miss: str = ""


class FetchedBlocks(NamedTuple):
    """A request whose records have been read, as far as they were there and sound."""

    request: Request
    first: int
    """Number of the first of its blocks that they are for."""
    records: tuple[KVRecord, ...]
    num_bytes: int = 0
    """Asked of the disk."""
    num_host: int = 0
    """Of the records, those that host memory had."""


class LeftBlocks(NamedTuple):
    """A copy out is over; no contents if it failed."""

    number: int
    contents: tuple[bytes | memoryview, ...]


class ArrivedBlocks(NamedTuple):
    """A copy to the device is over."""

    number: int
    is_whole: bool
    seconds: float
    """Of the transfer."""


class InboundBlocks(NamedTuple):
    """Records on their way to blocks of the device."""

    request: Request
    holding: Holding
    blocks: tuple[int, ...]
    records: tuple[KVRecord, ...]
    num_host: int
    was_preempted: bool = False


class OrderDone(NamedTuple):
    """An order that took a disk is over."""

    answer: CacheAnswer
    session: KeptSession | None = None
    """One that was read from a file."""


TierNews = FetchedBlocks | ArrivedBlocks | LeftBlocks | OrderDone
Put = Callable[[TierNews], object]


def holding_of(request: Request, tokens: tuple[int, ...]) -> Holding:
    return Holding(list(tokens), Namespace(request.salt, request.adapter))
