"""Memory that large bodies took, given back to the system: without it the gaps they leave stay (docs/measurements/edge.md)."""

import contextlib
import ctypes
import time
from functools import cache
from typing import Any

PAUSE_S = 1.0
"""Giving memory back takes a millisecond or so: not more often than this."""
LARGE_BYTES = 16 << 10
"""What a body of this size took is given back."""
LARGE_BUFFER_BYTES = 1 << 20
M_MMAP_THRESHOLD = -3
_last_s = [-PAUSE_S]
_is_due = [False]


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def keep_large_apart() -> None:
    """Large buffers lie on pages of their own from now on, which go back to the system with them.

    Left to itself the allocator learns to keep buffers of up to 32 MB among small ones, where they leave gaps.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES)


def trim_memory() -> None:
    """Give back what is free; if that has been done a moment ago, it is due later."""
    trim, now = _library(), time.monotonic()
    _is_due[0] = now - _last_s[0] < PAUSE_S
    if trim is not None and not _is_due[0]:
        _last_s[0] = now
        trim(0)


def trim_soon() -> None:
    """A large body is gone: the next look gives its memory back."""
    _is_due[0] = True


def needs_trim() -> bool:
    """Memory is still to be given back, at the next look."""
    return _is_due[0]
