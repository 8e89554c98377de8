"""What went between engines since the start, and how each fetch ended."""

from typing import NamedTuple

FAULTS = ("stale", "refused", "unreachable", "lost", "damaged", "slow", "absent", "busy")
"""Ends of a fetch: another engine is there; the key is wrong; nobody is; it was cut off; a record was not what was asked for;
nothing came in time; the peer has not all of it; too many were under way."""


class FetchEnd(NamedTuple):
    """How a fetch ended: no fault if as it should. Seconds are of receiving records, waits left out."""

    fault: str = ""
    num_bytes: int = 0
    seconds: float = 0.0


class TransferCounts(NamedTuple):
    num_fetches: int = 0
    """Fetches that have ended, well or badly."""
    fetched_blocks: int = 0
    """Blocks of peers that were laid into this cache."""
    moved_blocks: int = 0
    """Fetched blocks that were computed for a request of ours: its prompt was handed over."""
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    declined_blocks: int = 0
    """Blocks that a peer had and that were computed all the same: that was faster."""
    offered_blocks: int = 0
    """Blocks handed out to peers."""
    refused_peers: int = 0
    """Connections whose peer did not prove itself, or meant an earlier engine."""
    shared_peers: int = 0
    """Peers that read from memory shared with them."""
    faults: tuple[int, ...] = (0,) * len(FAULTS)
    """Fetches that ended badly; what they lacked was computed."""
    prompt_tokens_s: float = 0.0
    """Prompt tokens computed here in a second, as measured; 0 if nothing was."""
    fetched_bytes_s: float = 0.0
    """Bytes of peers' blocks received in a second, likewise."""

    def ended(self, end: FetchEnd) -> "TransferCounts":
        faults = tuple(count + (name == end.fault) for name, count in zip(FAULTS, self.faults, strict=True))
        return self._replace(
            num_fetches=self.num_fetches + 1,
            fetched_bytes=self.fetched_bytes + end.num_bytes,
            fetch_s=self.fetch_s + end.seconds,
            faults=faults,
        )
