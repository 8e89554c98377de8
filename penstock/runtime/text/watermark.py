"""A watermark that changes no distribution: the random numbers of draws come from streams that a secret key makes.

Every draw inverts a cumulative sum over token ids at one uniform number, which depends on (seed, choice, position) alone. With
a watermark the seed is one of a few that the key yields, another for every answer: each token is drawn from the model's
own distribution, with drafts, under grammars and on any device as ever. Whoever has the key knows the numbers.
Where an answer drew a high number its token has a high id among the likely ones: ids and numbers go together, which chance does
not explain.

    text  ->  token ids  ->  ranks, and for every stream and every place in it: their correlation with its numbers, as a z-value

The largest z-value is told, and how likely one as large is in a text that nobody marked, all streams and places tried.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ConfigError, RequestError

Numbers = np.ndarray[Any, np.dtype[np.float64]]
NUM_STREAMS = 64
"""Answers to one prompt that can differ at one temperature. More of them ask for longer texts."""
NUM_CHOICES = 4
"""Choices of a request whose numbers are looked for."""
MAX_POSITIONS = 1 << 14
"""Of an answer's beginning in its context."""
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 4096
MIN_TOKENS = 32
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a watermark in a text."""

    num_tokens: int
    z: float
    """Of the best stream and place, in standard deviations of chance."""
    num_tried: int
    """Streams, places and parts of the text."""
    num_best: int = 0
    """Tokens of the part that says most."""

    @property
    def p(self) -> float:
        """How likely as much is in a text without the watermark, at most."""
        return min(self.num_tried * 0.5 * math.erfc(self.z / math.sqrt(2.0)), 1.0)


class Watermark:
    def __init__(self, key: bytes) -> None:
        if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise ConfigError(
                f"the watermark's key has {len(key)} bytes; use {MIN_KEY_BYTES} to {MAX_KEY_BYTES}, "
                "such as `head -c 32 /dev/urandom > FILE` makes"
            )
        digest = hashlib.shake_256(b"penstock watermark " + key).digest(8 * NUM_STREAMS)
        self.seeds = tuple(int.from_bytes(digest[at : at + 8], "little") >> 1 for at in range(0, len(digest), 8))

    @classmethod
    def from_file(cls, path: Path) -> "Watermark":
        try:
            with path.open("rb") as file:
                return cls(file.read(MAX_KEY_BYTES + 1))
        except OSError as error:
            raise ConfigError(f"cannot read the watermark's key {path}: {error.strerror}") from error

    def seed(self, chance: int) -> int:
        """The seed of an answer, by any number that differs from answer to answer."""
        return self.seeds[chance % NUM_STREAMS]

    def evidence(self, token_ids: Sequence[int], max_positions: int = MAX_POSITIONS) -> Evidence:
        """What speaks for the watermark in a text of these tokens, wherever in a context it began."""
        count = len(token_ids)
        if count < MIN_TOKENS:
            raise RequestError(f"the text has {count} tokens; {MIN_TOKENS} are the least that says anything")
        windows = [token_ids[begin:end] for begin, end in _windows(count)]
        size = max_positions + count
        width = _fast_length(size)
        ranks = [_ranks(window) for window in windows]
        patterns = np.stack([np.fft.rfft(each[::-1], width) / _spread(each) for each in ranks])
        positions = np.arange(size, dtype=np.uint64)
        best, best_window = -math.inf, 0
        for seed in self.seeds:
            for choice in range(NUM_CHOICES):
                numbers = np.fft.rfft(uniform_numbers(seed, choice, positions) - 0.5, width)
                sums = np.fft.irfft(numbers * patterns, width)
                found = [float(row[len(each) - 1 : size].max()) for row, each in zip(sums, ranks, strict=True)]
                if max(found) > best:
                    best, best_window = max(found), found.index(max(found))
        num_tried = len(windows) * NUM_STREAMS * NUM_CHOICES * (max_positions + 1)
        return Evidence(count, best, num_tried, len(windows[best_window]))


def _fast_length(least: int) -> int:
    """Not less than that, and of small factors: transforms of such lengths are fast."""
    powers = range(least.bit_length() + 1)
    return min(
        int(n) for two in powers for three in powers for five in powers if (n := 2**two * 3**three * 5**five) >= least
    )


def _windows(count: int) -> list[tuple[int, int]]:
    """All of the text, its halves and its quarters: where a text became other tokens than were drawn, places shift."""
    cuts = [(count * part // parts, count * (part + 1) // parts) for parts in (1, 2, 4) for part in range(parts)]
    return [(begin, end) for begin, end in cuts if end - begin >= MIN_TOKENS]


def _spread(ranks: Numbers) -> float:
    """The standard deviation that chance gives to the sum of ranks times numbers."""
    return math.sqrt(float((ranks**2).sum()) / 12.0) or 1.0


def uniform_numbers(seed: int, choice: int, positions: "np.ndarray[Any, np.dtype[np.uint64]]") -> Numbers:
    """The numbers that draws of a seed and a choice use, as `ops.sampling.draw.uniform` defines them."""
    state = _mix(np.uint64(seed % 2**64) + np.zeros_like(positions) + _GOLDEN)
    state = _mix(state ^ (np.uint64(choice) + _GOLDEN))
    state = _mix(state ^ (positions + _GOLDEN))
    numbers: Numbers = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _mix(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


def _ranks(token_ids: Sequence[int]) -> Numbers:
    """Where each id stands among those of the text, from -1/2 to 1/2; equal ids stand at one place."""
    ids = np.asarray(token_ids)
    ordered = np.sort(ids)
    middle = (np.searchsorted(ordered, ids, "left") + np.searchsorted(ordered, ids, "right")) / 2.0
    ranks: Numbers = middle - middle.mean()
    return ranks
