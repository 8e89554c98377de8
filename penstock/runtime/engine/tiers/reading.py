"""Parts of files, past the page cache where they are not in it: there a direct read is several times as fast as one that fills
the cache first, and takes no memory from others."""

import mmap
import os
from pathlib import Path

ALIGNMENT = 4096
LEAST_DIRECT = 64 << 10
"""Bytes; fewer are read as usual."""


class PartReader:
    """For one thread at a time."""

    def __init__(self) -> None:
        self._room = mmap.mmap(-1, ALIGNMENT)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """As much of it as there is; raises OSError as reading does."""
        if size < LEAST_DIRECT or not hasattr(os, "RWF_NOWAIT") or not hasattr(os, "O_DIRECT"):
            return self._plain(path, offset, size)
        try:
            return self._cached(path, offset, size) or self._direct(path, offset, size)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without one of both
            return self._plain(path, offset, size)

    def _plain(self, path: Path, offset: int, size: int) -> bytes:
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset)

    def _cached(self, path: Path, offset: int, size: int) -> bytes:
        """Empty unless all of it is in the page cache."""
        data = bytearray(size)
        with path.open("rb", buffering=0) as file:
            try:
                count = os.preadv(file.fileno(), [data], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                count = 0
        return bytes(data) if count == size else b""

    def _direct(self, path: Path, offset: int, size: int) -> bytes:
        """The aligned pages around it."""
        begin = offset - offset % ALIGNMENT
        length = -(begin - offset - size) + ALIGNMENT - 1
        length -= length % ALIGNMENT
        if len(self._room) < length:
            self._room = mmap.mmap(-1, length)
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            with memoryview(self._room)[:length] as room:
                count = os.preadv(file, [room], begin)
        finally:
            os.close(file)
        return self._room[offset - begin : min(offset - begin + size, count)]
