"""One engine process as its parent sees it: start, send, watch, end.

Each incarnation has a folder of its own. The socket of a process that was given up is never read again, so it cannot be
heard.
"""

import asyncio
import contextlib
import signal
import threading

import zmq
import zmq.asyncio

from penstock.runtime.engine.process import COMMANDS_SOCKET, REPORTS_SOCKET
from penstock.runtime.engine.spawn import Spawned
from penstock.runtime.engine.wire import MAX_FRAME_BYTES, Command, encode

STACKS_S = 0.3
"""Time a hung process gets to print its stacks."""
MAX_TAKEN = 16
"""Frames read before other tasks of the event loop get their turn."""


class Child:
    """Made inside a running event loop. `close` may be called in any state and leaves nothing behind."""

    def __init__(self, spawned: Spawned, setup: bytes) -> None:
        """Take over a started process and write its setup, one line, to its input."""
        self._spawned = spawned
        self._process = spawned.process
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reports = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._reports.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._reports.setsockopt(zmq.LINGER, 0)
        path = spawned.folder / REPORTS_SOCKET
        self._reports.bind(f"ipc://{path}")
        path.chmod(0o600)
        spawned.take()
        self._at_once: zmq.Socket[bytes] = zmq.Socket.shadow(self._reports)
        self._commands: zmq.Socket[bytes] | None = None
        threading.Thread(target=self._reap, args=(self._ended.get_loop(),), name="reaper", daemon=True).start()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended already, as `wait` will report
                self._process.stdin.write(setup + b"\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self) -> None:
        """Open the way for commands, once the child is ready to read them."""
        self._commands = zmq.Context.instance().socket(zmq.PUSH)
        self._commands.setsockopt(zmq.SNDHWM, 0)
        self._commands.setsockopt(zmq.LINGER, 0)
        self._commands.connect(f"ipc://{self._spawned.folder / COMMANDS_SOCKET}")

    def send(self, command: Command) -> None:
        """Never blocks: what may wait here is bounded by what the server admits."""
        if self._commands is not None:
            self._commands.send(encode(command), zmq.NOBLOCK)

    async def receive(self) -> list[bytes]:
        """Frames that have arrived, at least one; several only if we have fallen behind. `decode_report` reads them."""
        frames = [await self._reports.recv()]
        with contextlib.suppress(zmq.Again):
            while len(frames) < MAX_TAKEN:
                frames.append(self._at_once.recv(zmq.NOBLOCK))
        return frames

    async def wait(self) -> int:
        """The exit status, once the process has ended."""
        return await asyncio.shield(self._ended)

    async def dump_stacks(self) -> None:
        """Let a hung process print where it is. One that is stopped prints nothing."""
        self._signal(signal.SIGUSR1)
        await asyncio.sleep(STACKS_S)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def close(self) -> None:
        self.kill()
        await self.wait()
        self._spawned.end()
        self._reports.close()
        if self._commands is not None:
            self._commands.close()

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread of its own: the process was started before there was an event loop to wait for it."""
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop has ended: no task waits
            loop.call_soon_threadsafe(self._report, status)

    def _report(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
