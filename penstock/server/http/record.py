"""A trace of what was served, without a word of it: times, counts, and which prompts began alike.

One JSON object a line, in the fields that published traces use, so that simulator and bench read ours and theirs alike.
Runs of tokens are named by a keyed hash; the key is forgotten with the process, so names mean nothing outside one file.
"""

import hashlib
import logging
import secrets
from array import array
from pathlib import Path
from typing import TextIO

import msgspec

from penstock.errors import ConfigError
from penstock.metrics.timeline import Outcome, Timeline

LOGGER = logging.getLogger(__name__)
BLOCK_TOKENS = 512


class TraceRecorder:
    def __init__(self, path: Path, start_s: float) -> None:
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--record {path} cannot be written: {error.strerror}") from error
        self._start_s = start_s
        self._key = secrets.token_bytes(32)
        self.num_lost = 0
        """Lines that could not be written."""

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
        try:
            self._file.write(msgspec.json.encode(line).decode() + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            if not self.num_lost:
                LOGGER.warning("--record cannot be written: %s; lines are lost and counted", error)
            self.num_lost += 1

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
