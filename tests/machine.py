"""What tests may expect of the machine they run on."""

import os
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""A busy machine may stand still for half a minute; what takes longer than this hangs."""

NUM_THREADS = min(len(os.sched_getaffinity(0)), 2)
"""Threads of a native library, which wait for one another by spinning: no more than this worker has cores."""


def wait_until(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    """Seconds it took."""
    start_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - start_s < timeout_s, "it never came"
        time.sleep(0.01)
    return time.monotonic() - start_s
