"""What can begin before torch is imported, which takes most of a start: a GPU's driver wakes, and the disk reads ahead.

Knows where large libraries lie, not what they are for, and must not import anything that takes time itself.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = {"torch": "lib/libtorch_cuda.so", "triton": "_C/libtriton.so", "nvidia": "*/lib/libcublas*.so*"}
"""Read piece by piece and late, by package."""


def begin() -> None:
    """In a thread, beside whatever is imported next."""
    threading.Thread(target=_begin, daemon=True).start()


def _begin() -> None:
    import ctypes  # takes time itself

    with suppress(OSError):  # where there is no GPU
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        for path in _libraries():
            read_ahead(path)


def _libraries() -> Iterator[Path]:
    for package, pattern in LIBRARIES.items():
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from Path(folder).glob(pattern)


def read_ahead(path: Path) -> None:
    """Ask the system for a file's bytes without waiting for them."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)
