"""Memory that large requests leave behind goes back to the system, where the C library can give it back."""

import ctypes
import time
from functools import cache
from typing import Any

PAUSE_S = 1.0
"""Giving back takes a millisecond or so: not more often than this."""
_last_s = [-PAUSE_S]


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def trim_memory() -> None:
    """Give back what is free, if that has not been done a moment ago."""
    trim, now = _library(), time.monotonic()
    if trim is not None and now - _last_s[0] >= PAUSE_S:
        _last_s[0] = now
        trim(0)
