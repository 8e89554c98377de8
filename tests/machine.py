"""What tests may expect of the machine they run on."""

import os
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""A busy machine may stand still for half a minute; what takes longer than this hangs."""

NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Of this worker alone, where the system can tell."""
NUM_THREADS = min(NUM_CORES, 2)
"""Threads of a native library, which wait for one another by spinning: no more than this worker has cores."""


def wait_until(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.01)
