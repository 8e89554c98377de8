"""What loading a model leaves resident and steps do not need: it goes back to the system.

Knows nothing of models. Where a system has no such thing to give back, nothing happens.
"""

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SMAPS = Path("/proc/self/smaps")
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) .*?( /.*)?$")


class Mapping(NamedTuple):
    begin: int
    end: int
    is_read_only: bool
    """A file's bytes, to be read or run and never written."""
    num_own_bytes: int = 0
    """Written after all, and so no longer the file's; in memory or swapped out."""


def give_back() -> None:
    """Pages that the allocator keeps though nothing lies there, and pages of files: most of a large library is run or read by
    loading alone, and all of a model's head.

    What is asked for again is mapped again from the system's copy of the file, a few microseconds a page.
    """
    if sys.platform != "linux":
        return
    system = ctypes.CDLL(None)
    if hasattr(system, "malloc_trim"):
        system.malloc_trim(0)
    try:
        smaps = SMAPS.read_text()
    except OSError:  # a sandbox may not show it
        return
    for mapping in mappings(smaps):
        if mapping.is_read_only and not mapping.num_own_bytes:
            begin, length = ctypes.c_void_p(mapping.begin), ctypes.c_size_t(mapping.end - mapping.begin)
            system.madvise(begin, length, mmap.MADV_DONTNEED)


def mappings(smaps: str) -> Iterator[Mapping]:
    """A process's memory, as the system lists it."""
    last: Mapping | None = None
    for line in smaps.splitlines():
        found = MAPPING.match(line)
        if found:
            if last is not None:
                yield last
            begin, end, rights, path = found.groups()
            last = Mapping(int(begin, 16), int(end, 16), rights[1] == "-" and path is not None)
        elif last is not None and line.startswith(("Anonymous:", "Swap:")):
            last = last._replace(num_own_bytes=last.num_own_bytes + int(line.split()[1]) * 1024)
    if last is not None:
        yield last
