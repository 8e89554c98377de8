"""What is to be written elsewhere and is not yet: in memory and, line by line, in a file that outlives the process.

Entries are added before they are written elsewhere and removed after, so whoever is killed between the two finds them again:
the place they go to has to know an entry by its id and take it once. The file is begun anew whenever nothing is left. Bounded:
an entry beyond the bound is refused, and the caller says so.
"""

import contextlib
import fcntl
import json
import os
import threading
from pathlib import Path

from penstock.errors import ConfigError

MAX_ENTRIES = 200_000
COMPACT_BYTES = 4 << 20
"""Of a file, most of it written elsewhere, before it is written anew."""
MAX_FILES = 64


class Journal:
    """One process a file; several beside each other get files of their own. Any thread may call."""

    def __init__(self, path: Path | None, max_entries: int = MAX_ENTRIES) -> None:
        """Without a path it is memory alone."""
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._entries: dict[str, bytes] = {}
        self._left_bytes = 0
        """Of entries that are not removed."""
        self.num_damaged = 0
        """Lines of earlier runs that could not be read."""
        self._num_bytes = 0
        self._descriptor = -1
        if path is not None:
            self._descriptor, data = self._opened(path)
            self._num_bytes = len(data)
            for line in data.splitlines():
                self._take_in(line)
            if data and not data.endswith(b"\n"):  # what follows is a line of its own
                self._num_bytes += os.write(self._descriptor, b"\n")

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry_id: str, text: str) -> bool:
        """False where it is full, or the disk is: then nobody remembers the entry but who asks."""
        line = json.dumps([entry_id, text]).encode() + b"\n"
        with self._lock:
            if len(self._entries) >= self._max_entries:
                return False
            self._keep(entry_id, line)
            with contextlib.suppress(OSError):  # in memory it is
                self._num_bytes += os.write(self._descriptor, line)
            return True

    def first(self, count: int) -> list[tuple[str, str]]:
        with self._lock:
            lines = [line for line, _ in zip(self._entries.values(), range(count))]
        return [(entry_id, text) for entry_id, text in map(json.loads, lines)]

    def remove(self, *entry_ids: str) -> None:
        """Lines that are written elsewhere by now."""
        with self._lock:
            for entry_id in entry_ids:
                self._left_bytes -= len(self._entries.pop(entry_id, b""))
            if self._num_bytes and (not self._entries or self._num_bytes > COMPACT_BYTES + 2 * self._left_bytes):
                self._rewrite()

    def close(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
            os.close(descriptor)

    def _keep(self, entry_id: str, line: bytes) -> None:
        self._left_bytes += len(line) - len(self._entries.get(entry_id, b""))
        self._entries[entry_id] = line

    def _rewrite(self) -> None:
        """Shorter, never longer: a disk that took the old lines takes these. Cut off in the middle, the old ones are lost that
        are written elsewhere, and the others are in memory.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            self._num_bytes = os.write(self._descriptor, b"".join(self._entries.values())) if self._entries else 0

    def _opened(self, path: Path) -> tuple[int, bytes]:
        for number in range(MAX_FILES):
            one = path if not number else path.with_name(f"{path.name}.{number}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(one, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            except OSError as error:
                raise ConfigError(f"cannot keep a journal in {one}: {error.strerror}; choose another path") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            return descriptor, one.read_bytes()
        raise ConfigError(f"{MAX_FILES} processes keep journals beside {path}; name another for this one")

    def _take_in(self, line: bytes) -> None:
        try:
            entry_id, _ = json.loads(line)
            self._keep(str(entry_id), line + b"\n")
        except ValueError:
            self.num_damaged += 1  # cut off in the middle
