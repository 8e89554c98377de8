"""What of a batch decides how long it takes, and how long it took: the values of a step log, to which a cost is fitted.

The engine writes them and the cost model reads them; neither knows the other.
"""

from typing import NamedTuple

from penstock.runtime.core.batch import Batch


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
    shared_kv: int
    """Positions that several chunks read, each counted once less than it is read."""

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
    """The next turn followed at once, so the caller's work between turns is part of `host_s`."""
    rest_s: float
    """How long the loop had had nothing to compute before it; 0 where it followed another at once."""
    features: Features


STEPS_VERSION = 3
COLUMNS = (*StepTime._fields[:-1], *Features._fields)
"""Of a step log of this version, in order."""


def features_of(batch: Batch) -> Features:
    """Add up a batch, by columns: this runs for every chunk of every logged or simulated step."""
    chunks = batch.chunks
    if not chunks:
        return Features(0, 0, 0, 0, 0, 0, 0, 0, 0)
    _, starts, lengths, _, _, samples, _, num_drafts, *_ = zip(*chunks)
    num_chunks, num_drawn = len(chunks), sum(samples) + sum(num_drafts)
    if max(lengths) == 1:
        single_kv, max_kv = sum(starts) + num_chunks, max(starts) + 1
        return Features(num_chunks, num_chunks, 0, num_drawn, single_kv, 0, max_kv, 0, batch.num_shared)
    num_singles = single_kv = num_long_tokens = long_kv = max_kv = long_pairs = 0
    for start, length in zip(starts, lengths):
        end = start + length
        max_kv = max(max_kv, end)
        if length == 1:
            num_singles += 1
            single_kv += end
        else:
            num_long_tokens += length
            long_kv += end
            # Queries at start .. end - 1 see start + 1 .. end keys.
            long_pairs += length * end - length * (length - 1) // 2
    return Features(
        num_chunks, num_singles, num_long_tokens, num_drawn, single_kv, long_kv, max_kv, long_pairs, batch.num_shared
    )
