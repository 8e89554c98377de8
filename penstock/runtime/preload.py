"""What can begin before torch is imported, which takes most of a start: a GPU's driver wakes meanwhile, other ranks import it
beside us.

Must not import anything that takes time itself.
"""

import subprocess
import sys
import threading
from contextlib import suppress

RANK = (sys.executable, "-m", "penstock.assembly.parallel.rank_worker")
"""A rank's process. It waits for its first line of input, and ends with that."""
_ranks: "list[subprocess.Popen[bytes]]" = []
"""Begun and not taken; they end with us."""


def begin_ranks(count: int) -> None:
    """Processes for so many ranks, before it is known what they are to do."""
    _ranks.extend(subprocess.Popen(RANK, stdin=subprocess.PIPE) for _ in range(count))


def take_rank() -> "subprocess.Popen[bytes]":
    """One of them, or a new one."""
    return _ranks.pop() if _ranks else subprocess.Popen(RANK, stdin=subprocess.PIPE)


def begin() -> None:
    """In a thread, beside whatever is imported next."""
    threading.Thread(target=_wake_driver, daemon=True).start()


def _wake_driver() -> None:
    """The next question for a GPU is answered at once."""
    import ctypes

    with suppress(OSError):  # where there is no GPU
        ctypes.CDLL("libcuda.so.1").cuInit(0)
