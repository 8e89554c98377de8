"""What tests may expect of the machine they run on."""

import itertools
import os
import socket
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""A busy machine may stand still for half a minute; what takes longer than this hangs."""

NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Of this worker alone, where the system can tell."""
NUM_THREADS = min(NUM_CORES, 2)
"""Threads of a native library, which wait for one another by spinning: no more than this worker has cores."""


_PORTS = itertools.count(os.getpid() * 31)


def free_port(host: str = "127.0.0.1") -> int:
    """A port for a process that is to be told one. It lies below those that the system gives to connections by itself, so that
    none of them takes it before that process does."""
    for number in _PORTS:
        port = 20_000 + number % 10_000
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError


def wait_until(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.01)
