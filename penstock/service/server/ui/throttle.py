"""Processes that give way: while answers are being written they run in a small part of every second, all in the same part.

Priority alone is not enough: a process of low priority still takes a slice now and then, and so makes many steps a little
longer. Kept together in a twenty-fifth of the time, slices reach so few steps that no percentile below the 96th sees them.
"""

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import Callable

PERIOD_S = 1.0
SHARE = 0.04
IDLE_S = 0.1


class ToolThrottle:
    """Lives on the server's event loop. `is_busy` tells whether answers are being written."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._processes: set[Process] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, process: Process) -> None:
        self._processes.add(process)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep())

    def free(self, process: Process) -> None:
        """It gives way no longer."""
        self._processes.discard(process)
        _send(process, signal.SIGCONT)

    async def _keep(self) -> None:
        while self._processes:
            self._processes = {one for one in self._processes if one.returncode is None}
            if not self._is_busy():
                await asyncio.sleep(IDLE_S)
                continue
            await self._hold(PERIOD_S * (1.0 - SHARE))
            await asyncio.sleep(PERIOD_S * SHARE)

    async def _hold(self, seconds: float) -> None:
        """Processes that are there now stand still; one that comes meanwhile is held from the next time on."""
        held = tuple(self._processes)
        for process in held:
            _send(process, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for process in held:
                _send(process, signal.SIGCONT)


def _send(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
