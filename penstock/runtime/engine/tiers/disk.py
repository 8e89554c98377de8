"""Records on a disk, within a bound: files that are only appended to, and an index of what lies where.

A record is in the index only after its bytes are in the file, so a process that is killed loses the newest and breaks nothing.
Opening reads the index alone. When there is too much, the file whose records were used longest ago goes as a whole. A disk
that fails makes misses, never errors: faults are counted and said once.
"""

import fcntl
import logging
import sqlite3
import time
from pathlib import Path
from typing import IO

from penstock.errors import ConfigError
from penstock.runtime.engine.tiers.reading import PartReader
from penstock.runtime.engine.tiers.record import KVRecord, decode_record, encode_record

LOGGER = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
MAX_PARTS = 64
SEGMENTS = 16
"""At least so many files fit within the bound, so that what goes at once is a small part."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (id INTEGER PRIMARY KEY, num_bytes INTEGER NOT NULL, used_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    key BLOB PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL, num_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS records_of_segment ON records (segment);
"""


class DiskTier:
    """One part of a folder, which one process writes at a time; its files survive it. All calls come from one thread."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.folder = folder
        self.num_faults = 0
        """Reads and writes that failed, and records that were not what the index said."""
        self._segment_bytes = max(min(SEGMENT_BYTES, max_bytes // SEGMENTS), 1)
        self.parts = PartReader()
        self._file: IO[bytes] | None = None
        self._segment = 0
        try:
            self._folder, self._lock = _claim(folder)
            self._index = sqlite3.connect(self._folder / "index.sqlite", timeout=2.0, check_same_thread=False)
            self._index.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--kv-disk {folder} cannot be used: {error}; name another folder") from error
        row = self._index.execute("SELECT coalesce(sum(num_bytes), 0), coalesce(max(id), 0) FROM segments").fetchone()
        self.num_bytes, self._last = int(row[0]), int(row[1])
        self._keys = {bytes(key) for (key,) in self._index.execute("SELECT key FROM records")}
        """All keys in memory: looking for what is not there costs no disk."""
        known = {self._path(segment) for (segment,) in self._index.execute("SELECT id FROM segments")}
        for path in set(self._folder.glob("*.kv")) - known:  # of a process that was killed while it wrote
            path.unlink(missing_ok=True)
        with self._index:
            self._shrink(0)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def get(self, key: bytes, hash: bytes) -> KVRecord | None:
        """The record, read and verified; one that is damaged is forgotten."""
        if key not in self._keys:
            return None
        try:
            row = self._index.execute("SELECT segment, offset, num_bytes FROM records WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise OSError("the index has lost a record")
            record = decode_record(key, hash, self.parts.read(self._path(row[0]), row[1], row[2]))
            if record is None:
                raise OSError(f"a record of segment {row[0]} is damaged")
            self._index.execute("UPDATE segments SET used_s = ? WHERE id = ?", (time.time(), row[0]))
        except (OSError, sqlite3.Error) as error:
            self._fault(error)
            self._forget(key)
            self._abandon()  # the file may be gone that is being written
            return None
        return record

    def put(self, records: list[tuple[bytes, KVRecord]]) -> None:
        """Write records that are not there yet."""
        try:
            with self._index:
                for key, record in records:
                    if key not in self._keys:
                        self._append(key, encode_record(key, record))
        except (OSError, sqlite3.Error) as error:
            self._fault(error)
            self._abandon()
        self._keys.update(key for key, _ in records if self._is_indexed(key))

    def drop(self, keys: list[bytes]) -> None:
        """Forget records; their bytes go with their file."""
        for key in keys:
            if key in self._keys:
                self._forget(key)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._index.close()
        self._lock.close()

    def _append(self, key: bytes, data: bytes) -> None:
        if len(data) > self._segment_bytes:
            return
        file = self._open(len(data))
        offset = file.tell()
        file.write(data)
        file.flush()
        self._index.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", (key, self._segment, offset, len(data))
        )
        self._index.execute("UPDATE segments SET num_bytes = ? WHERE id = ?", (offset + len(data), self._segment))
        self.num_bytes += len(data)

    def _open(self, num_more: int) -> IO[bytes]:
        """The file that is written, another where this one is full; room is made before it is taken."""
        if self._file is not None and self._file.tell() + num_more > self._segment_bytes:
            self._file.close()
            self._file = None
        self._shrink(num_more)
        if self._file is None:
            self._last += 1
            self._segment = self._last
            self._index.execute("INSERT INTO segments VALUES (?, 0, ?)", (self._segment, time.time()))
            self._file = self._path(self._segment).open("wb", buffering=0)
        return self._file

    def _shrink(self, num_more: int) -> None:
        """Remove whole files until so much more fits: never the one that is written."""
        while self.num_bytes + num_more > self.max_bytes:
            row = self._index.execute(
                "SELECT id, num_bytes FROM segments WHERE id != ? ORDER BY used_s LIMIT 1",
                (self._segment if self._file is not None else -1,),
            ).fetchone()
            if row is None:
                break
            gone = [
                bytes(key) for (key,) in self._index.execute("SELECT key FROM records WHERE segment = ?", (row[0],))
            ]
            self._index.execute("DELETE FROM records WHERE segment = ?", (row[0],))
            self._index.execute("DELETE FROM segments WHERE id = ?", (row[0],))
            self._path(row[0]).unlink(missing_ok=True)
            self._keys.difference_update(gone)
            self.num_bytes -= row[1]

    def _abandon(self) -> None:
        """What was being written is not in the index: the next records go to another file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            row = self._index.execute("SELECT coalesce(sum(num_bytes), 0) FROM segments").fetchone()
            self.num_bytes = int(row[0])
        except sqlite3.Error:
            self.num_bytes = 0

    def _is_indexed(self, key: bytes) -> bool:
        try:
            return self._index.execute("SELECT 1 FROM records WHERE key = ?", (key,)).fetchone() is not None
        except sqlite3.Error:
            return False

    def _forget(self, key: bytes) -> None:
        self._keys.discard(key)
        try:
            with self._index:
                self._index.execute("DELETE FROM records WHERE key = ?", (key,))
        except sqlite3.Error as error:
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        self.num_faults += 1
        if self.num_faults == 1:
            LOGGER.warning("the KV tier at %s: %s; what it held is computed again", self._folder, error)

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.kv"


def _claim(folder: Path) -> tuple[Path, IO[str]]:
    """The first part of the folder that no other engine has, and its lock, held until it is closed.

    Replicas and models of one server are engines of their own: each would write over the others' files.
    """
    for number in range(MAX_PARTS):
        part = folder / str(number)
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (part / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return part, lock
        except BlockingIOError:
            lock.close()
    raise ConfigError(f"--kv-disk {folder} is in use by {MAX_PARTS} other engines; name another folder")
