"""Memory that two processes of one machine see: records lie there, and the connection carries only where.

    offering:  shared   name | size            a segment of two halves, which only this user may open
    fetching:  mapped   1 if it could be opened, else 0 and everything goes through the connection
    offering:  placed   offset | length        in the place of records
    fetching:  taken                           what was placed has been copied; the half may be written again

The name is drawn at random, is told over the sealed connection alone and is gone as soon as the other has answered: a process
that is killed leaves nothing behind. What lies there is verified record by record, like what came through a socket.
"""

import contextlib
import mmap
import os
import secrets
import struct
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "penstock-kv-"
HALVES = 2
PLACE = struct.Struct("<QQ")
SIZE = struct.Struct("<Q")


class SharedSegment:
    """Halves are written in turn by one process and read by another."""

    def __init__(self, memory: mmap.mmap, name: str) -> None:
        self.name = name
        self._memory = memory
        self.half_bytes = len(memory) // HALVES
        self._half = 0
        self.num_placed = 0
        """Halves that the other has not taken yet."""

    @property
    def words(self) -> bytes:
        """What the other needs to open it."""
        return SIZE.pack(len(self._memory)) + self.name.encode()

    def place(self, parts: "list[bytes | memoryview]") -> bytes:
        """Write to the next half; returns where that is, for the other."""
        begin = end = self._half * self.half_bytes
        for part in parts:
            self._memory[end : end + len(part)] = part
            end += len(part)
        self._half = (self._half + 1) % HALVES
        self.num_placed += 1
        return PLACE.pack(begin, end - begin)

    def view(self, place: bytes) -> memoryview:
        """What the other has placed; raises OSError for a place that is none."""
        if len(place) != PLACE.size:
            raise OSError("no place in shared memory")
        begin, size = PLACE.unpack(place)
        if size > self.half_bytes or begin + size > len(self._memory):
            raise OSError("a place outside of the shared memory")
        return memoryview(self._memory)[begin : begin + size]

    def hide(self) -> None:
        """Its name is gone: no process opens it any more."""
        with contextlib.suppress(OSError):
            (FOLDER / self.name).unlink()

    def close(self) -> None:
        self.hide()
        with contextlib.suppress(BufferError):  # somebody still reads: it goes with the last reference
            self._memory.close()


def create(half_bytes: int) -> SharedSegment | None:
    """None where this machine has no such memory to give."""
    name = PREFIX + secrets.token_hex(16)
    try:
        file = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, HALVES * half_bytes)  # now, or a write would end the process
        return SharedSegment(mmap.mmap(file, HALVES * half_bytes), name)
    except OSError:
        (FOLDER / name).unlink(missing_ok=True)
        return None
    finally:
        os.close(file)


def open_segment(words: bytes) -> SharedSegment | None:
    """The segment that another process has made; None if it is not to be seen from here."""
    name, size = words[SIZE.size :].decode(errors="replace"), int.from_bytes(words[: SIZE.size], "little")
    if not name.startswith(PREFIX) or not name.removeprefix(PREFIX).isalnum():
        return None
    try:
        file = os.open(FOLDER / name, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(file).st_size != size or not size:
            return None
        return SharedSegment(mmap.mmap(file, size, prot=mmap.PROT_READ), name)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
