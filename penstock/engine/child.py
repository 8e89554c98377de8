"""One engine process as its parent sees it: start, talk, watch, end.

Each incarnation has a folder of its own, so a process that was given up can never speak again: nobody reads its socket.
"""

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import zmq
import zmq.asyncio

from penstock.engine.process import COMMANDS_SOCKET, REPORTS_SOCKET
from penstock.engine.wire import MAX_FRAME_BYTES, Command, encode

STACKS_S = 0.3
"""Time a hung process gets to print its stacks."""
MAX_TAKEN = 16
"""Frames taken in before others on the event loop have their turn."""


class Child:
    """Made by `start`. `close` may be called in any state and leaves nothing behind."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, reports: zmq.asyncio.Socket) -> None:
        self._process = process
        self._folder = folder
        self._reports = reports
        self._at_once: zmq.Socket[bytes] = zmq.Socket.shadow(reports)
        self._commands: zmq.Socket[bytes] | None = None

    @classmethod
    async def start(cls, command: Sequence[str], setup: bytes) -> "Child":
        """Run a command that ends in `run_engine`; it finds the folder as its last word and the setup on its input."""
        folder = Path(tempfile.mkdtemp(prefix="penstock-"))  # mode 0700
        reports = zmq.asyncio.Context.instance().socket(zmq.PULL)
        reports.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        reports.setsockopt(zmq.LINGER, 0)
        reports.bind(f"ipc://{folder / REPORTS_SOCKET}")
        (folder / REPORTS_SOCKET).chmod(0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, str(folder), stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
        except OSError:
            reports.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if process.stdin is not None:
            process.stdin.write(setup + b"\n")
        return cls(process, folder, reports)

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self) -> None:
        """Open the way for commands, once the child is ready to read them."""
        self._commands = zmq.Context.instance().socket(zmq.PUSH)
        self._commands.setsockopt(zmq.SNDHWM, 0)
        self._commands.setsockopt(zmq.LINGER, 0)
        self._commands.connect(f"ipc://{self._folder / COMMANDS_SOCKET}")

    def send(self, command: Command) -> None:
        """Never blocks: what may wait here is bounded by what the server admits."""
        if self._commands is not None:
            self._commands.send(encode(command), zmq.NOBLOCK)

    async def receive(self) -> list[bytes]:
        """Frames that have arrived, one at least; several only if we have fallen behind. `decode_report` reads them."""
        frames = [await self._reports.recv()]
        with contextlib.suppress(zmq.Again):
            while len(frames) < MAX_TAKEN:
                frames.append(self._at_once.recv(zmq.NOBLOCK))
        return frames

    async def wait(self) -> int:
        """The exit status, once the process has ended."""
        return await self._process.wait()

    async def dump_stacks(self) -> None:
        """Let a hung process print where it is. One that is stopped prints nothing."""
        self._signal(signal.SIGUSR1)
        await asyncio.sleep(STACKS_S)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def close(self) -> None:
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        self._reports.close()
        if self._commands is not None:
            self._commands.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
