"""The processes of an engine's other ranks: begun, watched and ended by the first, which runs in this process.

Each reads its setup, a line of JSON, on its input, and ends when that is closed: none outlives the first. All beat at the
store by a thread of their own, those of other machines too. One that ends, or is silent for too long, is lost, and with it the
group: the others' exchanges with it fail, and so does the step that the first rank is in.
"""

import contextlib
import logging
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from penstock.runtime.execution.parallel.world import open_store

LOGGER = logging.getLogger(__name__)
BEAT_S = 0.5
SILENT_S = 5.0
"""A rank that has not beaten for this long is given up."""
GRACE_S = 2.0
"""Time in which the step that misses a lost rank is to fail by itself."""
END_S = 5.0
SHARED_MEMORY = Path("/dev/shm")

OnLost = Callable[[str], None]


class RankProcesses:
    """Ranks 1 and up. `close` may be called at any time, more than once, and leaves nothing behind."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.store = open_store(host, port, is_host=True)
        home = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-ranks-", dir=home))  # mode 0700
        self.on_lost: OnLost | None = None
        """Called, on another thread, with the reason why the group is lost, if no step has failed for it by then."""
        self.lost: str | None = None
        """Why, once it is."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    def take(self, rank: int, process: "subprocess.Popen[bytes]", setup: bytes) -> None:
        """Give a waiting process its setup and watch over it."""
        self._processes[rank] = process
        send_setup(process, setup)

    def watch(self, ranks: Sequence[int]) -> None:
        """Watch these ranks from now on. Until it has joined, a rank that ends is noticed by the ranks that wait for it."""
        self._watcher = threading.Thread(target=self._watch, args=(ranks,), name="ranks", daemon=True)
        self._watcher.start()

    def ended(self) -> str | None:
        """The first rank found that has ended, and how."""
        for rank, process in self._processes.items():
            status = process.poll()
            if status is not None:
                how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
                return f"rank {rank} {how}"
        return None

    def close(self) -> None:
        self._closing.set()
        end_ranks(list(self._processes.values()))
        self._processes.clear()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self, ranks: Sequence[int]) -> None:
        store = open_store(self.store.host, self.store.port, is_host=False)
        heard = dict.fromkeys(ranks, (-1, time.monotonic()))
        while not self._closing.wait(BEAT_S):
            fault = self.ended() or self._silent(store, heard)
            if fault is not None:
                self.lost = fault
                LOGGER.error("%s; all ranks start anew", fault)
                if self.on_lost is not None and not self._closing.wait(GRACE_S):
                    self.on_lost(fault)
                return

    def _silent(self, store: Store, heard: dict[int, tuple[int, float]]) -> str | None:
        now = time.monotonic()
        for rank, (beats, last_s) in list(heard.items()):
            found = store.add(beat_key(rank), 0)
            if found != beats:
                heard[rank] = (found, now)
            elif now - last_s > SILENT_S:
                if rank in self._processes:  # those of other machines are ended there
                    self._processes[rank].kill()  # what waits for it learns of it by that
                return f"rank {rank} was silent for {SILENT_S:.0f} s"
        return None


def send_setup(process: "subprocess.Popen[bytes]", setup: bytes) -> None:
    """Write the setup as the first line of the process's input."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, as whoever watches will tell
            process.stdin.write(setup + b"\n")
            process.stdin.flush()


def end_ranks(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """All at once; those that do not end in time are killed."""
    for process in processes:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def beat_key(rank: int) -> str:
    return f"beat/{rank}"


def beat(host: str, port: int, rank: int) -> threading.Thread:
    """Beats for as long as the process lives; one that is stopped does not."""

    def run() -> None:
        store = open_store(host, port, is_host=False)
        with contextlib.suppress(RuntimeError):  # the first rank is gone: our input tells us
            while True:
                store.add(beat_key(rank), 1)
                time.sleep(BEAT_S)

    thread = threading.Thread(target=run, name="beat", daemon=True)
    thread.start()
    return thread
