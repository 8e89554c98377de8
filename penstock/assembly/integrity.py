"""Is the model what it was? Checksums of fetched files, and a canary: the first tokens of a fixed prompt, kept between runs.

Files can rot and memory can be bad without anything failing: answers only become other answers. Checksums are compared in the
background after a start, so that they delay no request; a canary that changes on the same machine, version and settings means
that something did. Either takes the server's readiness away and says why.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.formats.hub import default_cache
from penstock.formats.store import Progress, StoreEntry, damaged_files, installed

CANARY_PROMPT = tuple(range(5, 37))
CANARY_TOKENS = 16


def find_fetched(path: Path) -> StoreEntry | None:
    """The fetched model that this path belongs to."""
    return next((entry for entry in installed(default_cache()) if entry.path.resolve() == path.resolve()), None)


def damage_of(path: Path, progress: Progress | None = None) -> list[str]:
    """Files of a fetched model that differ from what was fetched; none for files of one's own, which nobody vouched for."""
    entry = find_fetched(path)
    return [] if entry is None else damaged_files(entry, progress or (lambda stage, done, total: None))


class Canary:
    """What a model answered the first time on this machine, with this version and these settings."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """`facts` are all that may change the answer for good reasons."""
        name = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
        self._path = folder / "canaries" / f"{name}.json"

    def has_changed(self, token_ids: Sequence[int]) -> bool:
        """The answer is another than the first one; the first is kept. A place that cannot be written keeps none."""
        try:
            return bool(json.loads(self._path.read_text()) != list(token_ids))
        except (OSError, ValueError):  # the first time, or a file that was cut short
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                partial = self._path.with_suffix(".partial")
                partial.write_text(json.dumps(list(token_ids)))
                partial.rename(self._path)
            return False
