"""A trace of what was served, without a word of it: times, counts, and which prompts began alike.

One JSON object a line, in the fields that published traces use, so that simulator and bench read ours and theirs alike.
Blocks of a prompt and its answer, as large as the cache's, are named by a keyed hash: a replay meets the prefixes that the
server met. The key is forgotten with the process, so names mean nothing outside one file.
"""

import hashlib
import secrets
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.lines import LineFile
from penstock.metrics.timeline import Outcome, Timeline
from penstock.runtime.core.prefix import Namespace
from penstock.runtime.core.request import Request


class TraceRecorder:
    def __init__(self, path: Path, start_s: float) -> None:
        self._file = LineFile(path, "--record")
        self._start_s = start_s
        self._key = secrets.token_bytes(32)

    @property
    def num_lost(self) -> int:
        """Lines that could not be written."""
        return self._file.num_lost

    def write(
        self, request: Request, answer: Sequence[int], block_size: int, timeline: Timeline, outcome: Outcome, now: float
    ) -> None:
        """Never fails a request: a full disk loses lines, not answers."""
        line = {
            "timestamp": round((timeline.arrival_s - self._start_s) * 1000),
            "input_length": timeline.num_prompt,
            "output_length": timeline.num_tokens,
            "block_size": block_size,
            "hash_ids": self._names(request, answer, block_size),
            "cached_length": timeline.num_cached,
            "num_choices": timeline.num_choices,
            "outcome": outcome.value,
            "ttft_ms": None if timeline.ttft_s is None else round(timeline.ttft_s * 1000, 3),
            "e2e_ms": round((now - timeline.arrival_s) * 1000, 3),
        }
        self._file.write(msgspec.json.encode(line))

    def close(self) -> None:
        self._file.close()

    def _names(self, request: Request, answer: Sequence[int], block_size: int) -> list[int]:
        """One number a whole block; equal numbers mean equal tokens up to there, in the same namespace of the cache."""
        names = []
        parent = Namespace(request.salt, request.adapter).hash
        words = array("I", (*request.prompt, *answer))
        for start in range(0, len(words) - block_size + 1, block_size):
            block = words[start : start + block_size].tobytes()
            parent = hashlib.blake2b(parent + block, digest_size=8, key=self._key).digest()
            names.append(int.from_bytes(parent, "little") >> 11)
        return names
