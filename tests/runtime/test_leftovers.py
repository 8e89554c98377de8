"""What loading leaves behind goes back, and nothing else does."""

import ctypes
import mmap
import sys
from pathlib import Path

import pytest

from penstock.runtime.leftovers import SMAPS, Mapping, give_back, mappings

LISTING = """\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a program
Rss:                 320 kB
Anonymous:             0 kB
7f0000000000-7f0000002000 r-xp 00001000 08:02 135522 /usr/lib/patched.so
Anonymous:             4 kB
7f0000002000-7f0000004000 r--s 00001000 00:01 1 /models/model (deleted)
Anonymous:             0 kB
7f0000004000-7f0000005000 r--p 00003000 08:02 135522 /usr/lib/patched.so
Anonymous:             0 kB
Swap:                  4 kB
SwapPss:               4 kB
7f0000005000-7f0000006000 rw-p 00004000 08:02 135522 /usr/lib/patched.so
Anonymous:             0 kB
7f0000006000-7f0000007000 r-xp 00000000 00:00 0
Anonymous:             4 kB
7fff0000-7fff1000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
"""
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the system lists no memory")


def test_what_a_file_can_give_again_is_told_from_what_somebody_wrote():
    assert list(mappings(LISTING)) == [
        Mapping(0x400000, 0x452000, True, 0),
        Mapping(0x7F0000000000, 0x7F0000002000, True, 4096),
        Mapping(0x7F0000002000, 0x7F0000004000, True, 0),
        Mapping(0x7F0000004000, 0x7F0000005000, True, 4096),
        Mapping(0x7F0000005000, 0x7F0000006000, False, 0),
        Mapping(0x7F0000006000, 0x7F0000007000, False, 4096),
        Mapping(0x7FFF0000, 0x7FFF1000, False, 0),
    ]
    assert list(mappings("")) == []


@ON_LINUX
@pytest.mark.parametrize("rights", [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC])
def test_everything_works_as_before(tmp_path: Path, rights: int):
    """Code runs, a library's data is what it was, and memory that somebody wrote, be it in a file's mapping, stays."""
    file = tmp_path / "code"
    file.write_bytes(b"\x01" * mmap.PAGESIZE)
    with file.open("r+b") as opened:
        patched = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE)
    patched[:4] = b"mine"
    system = ctypes.CDLL(None)
    address = ctypes.addressof(ctypes.c_char.from_buffer(patched))
    assert not system.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, rights)
    numbers = list(range(1000))
    give_back()
    assert ctypes.string_at(address, 4) == b"mine"
    assert sum(numbers) == 499_500
    assert not system.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)


@ON_LINUX
def test_code_that_was_run_is_resident_no_more():
    """torch's library is far larger than what the few lines after it run."""
    import torch

    torch.arange(4).sum()
    before = resident_code()
    give_back()
    assert resident_code() < before / 2


def resident_code() -> int:
    num_bytes, is_code = 0, False
    for line in SMAPS.read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_code = " r-xp " in line and "/" in line
        elif is_code and line.startswith("Rss:"):
            num_bytes += int(line.split()[1]) * 1024
    return num_bytes
