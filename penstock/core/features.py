"""What of a batch decides how long it takes, and how long it took: the values of a step log, to which a cost is fitted.

The engine writes them and the cost model reads them; neither knows the other.
"""

from typing import NamedTuple

from penstock.core.batch import Batch


class Features(NamedTuple):
    """A batch, added up. A chunk of one token reads its context once; a longer one scores a triangle of pairs."""

    num_chunks: int
    num_singles: int
    """Chunks of one token: decoding, mostly."""
    num_long_tokens: int
    """Tokens of longer chunks: prompts, mostly."""
    num_drawn: int
    """Rows that draw a token, each a row of the output product."""
    single_kv: int
    """Positions that the chunks of one token read, summed."""
    long_kv: int
    """Positions that the longer chunks read, summed."""
    max_kv: int
    """Positions that the chunk with the longest context reads."""
    long_pairs: int
    """Query-key pairs of the longer chunks."""

    @property
    def num_tokens(self) -> int:
        return self.num_singles + self.num_long_tokens


class StepTime(NamedTuple):
    """One step of a live engine."""

    start_s: float
    """When its turn of the loop began, from when the log was opened."""
    device_s: float
    """From launch, or from the end of the step before it if that is later, to its tokens on the host."""
    host_s: float
    """Of the turn in which it was collected, what was not spent waiting for the device."""
    is_busy: bool
    """The next turn followed at once, so that what the caller does between turns is counted in `host_s`."""
    features: Features


def features_of(batch: Batch) -> Features:
    """Add up a batch. Chunk fields are read by position: this runs for every chunk of every logged or simulated step."""
    chunks = batch.chunks
    num_drawn = sum([1 + chunk[7] for chunk in chunks if chunk[5]])
    singles = [chunk[1] for chunk in chunks if chunk[2] == 1]
    num_singles = len(singles)
    single_kv = sum(singles) + num_singles
    max_kv = max(singles) + 1 if singles else 0
    if num_singles == len(chunks):
        return Features(num_singles, num_singles, 0, num_drawn, single_kv, 0, max_kv, 0)
    num_long_tokens = long_kv = long_pairs = 0
    for chunk in chunks:
        length = chunk[2]
        if length != 1:
            end = chunk[1] + length
            num_long_tokens += length
            long_kv += end
            # Queries at start .. end - 1 see start + 1 .. end keys.
            long_pairs += length * end - length * (length - 1) // 2
            if end > max_kv:
                max_kv = end
    return Features(len(chunks), num_singles, num_long_tokens, num_drawn, single_kv, long_kv, max_kv, long_pairs)
