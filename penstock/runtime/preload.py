"""What can begin before torch is imported, which takes most of a start: a GPU's driver wakes meanwhile, other ranks and the
processes that compile kernels import it beside us.

Must not import anything that takes time itself.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from io import FileIO
from pathlib import Path

RANK = (sys.executable, "-m", "penstock.assembly.parallel.rank_worker")
"""A rank's process. It waits for its first line of input, and ends with that."""
_ranks: "list[subprocess.Popen[bytes]]" = []
"""Begun and not taken; they end with us."""

COMPILER = (
    *("/usr/bin/env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1", "nice", "-n", "5"),
    *(sys.executable, "-m", "penstock.runtime.ops.triton.host.compiler"),
)
"""Compiles kernels, with one thread: there is such a process a core."""
MAX_COMPILERS = 16
GPU = Path("/dev/nvidiactl")
_compilers: "list[CompilerPool]" = []
"""Begun and not taken."""


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


class CompilerPool:
    """Processes that compile kernels: all of them take from one socket, a variant a message, and answer into one pipe."""

    def __init__(self, command: Sequence[str]) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answered, answers = os.pipe()
        self.answered = FileIO(answered)
        self._workers = [
            subprocess.Popen(command, stdin=theirs.fileno(), stdout=answers, bufsize=0, start_new_session=True)
            for _ in range(min(len(os.sched_getaffinity(0)), MAX_COMPILERS))
        ]
        theirs.close()
        os.close(answers)

    @property
    def is_alive(self) -> bool:
        return any(worker.poll() is None for worker in self._workers)

    def end(self) -> None:
        self.requests.close()
        self.answered.close()
        for worker in self._workers:
            worker.terminate()
            worker.wait()


def begin_compilers() -> None:
    """Processes that compile kernels, where there is a GPU, before it is known whether it is asked for."""
    if GPU.exists() and find_spec("triton") is not None:
        _compilers.append(CompilerPool(COMPILER))


def take_compilers() -> CompilerPool:
    """The pool that was begun, or a new one."""
    return _compilers.pop() if _compilers else CompilerPool(COMPILER)


def end_compilers() -> None:
    """No GPU is going to be used: the pool that was begun has nothing to do."""
    while _compilers:
        _compilers.pop().end()
