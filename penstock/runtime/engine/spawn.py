"""A process for an engine, begun before anything is known of the engine.

Owns the process and the folder of its sockets until a `Child` takes both. Imports nothing heavy: loading an interpreter and
torch takes longer than all the rest of a start, so whoever serves begins with this and imports what it needs itself meanwhile.
"""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


class Spawned:
    """A process that waits for its setup. Leaving it as a context ends it, unless it was taken."""

    def __init__(self, command: Sequence[str]) -> None:
        """Run a command that ends in `run_engine`; it finds the folder as its last word."""
        self.start_s = time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-"))  # mode 0700
        try:
            self.process = subprocess.Popen([*command, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._is_taken = False

    def take(self) -> None:
        """From now on somebody else ends it."""
        self._is_taken = True

    def end(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Spawned":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_taken:
            self.end()
