"""A trace of what was served, without a word of it: times, counts, and which prompts began alike.

One JSON object a line, in the fields that published traces use, so that simulator and bench read ours and theirs alike.
Runs of tokens are named by a keyed hash; the key is forgotten with the process, so names mean nothing outside one file.
"""

import hashlib
import secrets
from array import array
from pathlib import Path

import msgspec

from penstock.lines import LineFile
from penstock.metrics.timeline import Outcome, Timeline

BLOCK_TOKENS = 512


class TraceRecorder:
    def __init__(self, path: Path, start_s: float) -> None:
        self._file = LineFile(path, "--record")
        self._start_s = start_s
        self._key = secrets.token_bytes(32)

    @property
    def num_lost(self) -> int:
        """Lines that could not be written."""
        return self._file.num_lost

    def write(self, prompt: tuple[int, ...], timeline: Timeline, outcome: Outcome, now: float) -> None:
        """Never fails a request: a full disk loses lines, not answers."""
        line = {
            "timestamp": round((timeline.arrival_s - self._start_s) * 1000),
            "input_length": timeline.num_prompt,
            "output_length": timeline.num_tokens,
            "hash_ids": self._names(prompt),
            "cached_length": timeline.num_cached,
            "num_choices": timeline.num_choices,
            "outcome": outcome.value,
            "ttft_ms": None if timeline.ttft_s is None else round(timeline.ttft_s * 1000, 3),
            "e2e_ms": round((now - timeline.arrival_s) * 1000, 3),
        }
        self._file.write(msgspec.json.encode(line))

    def close(self) -> None:
        self._file.close()

    def _names(self, prompt: tuple[int, ...]) -> list[int]:
        """One number a block; equal numbers mean equal tokens up to there."""
        names = []
        parent = b""
        for start in range(0, len(prompt), BLOCK_TOKENS):
            tokens = array("I", prompt[start : start + BLOCK_TOKENS]).tobytes()
            parent = hashlib.blake2b(parent + tokens, digest_size=8, key=self._key).digest()
            names.append(int.from_bytes(parent, "little") >> 11)
        return names
