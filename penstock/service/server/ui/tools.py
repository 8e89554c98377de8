"""The tools behind the pages: simulator, planner, benchmark, each run in a process of its own that may be given up.

A process runs at low priority within bounds of time and memory, and gives way to answers: while some are being written it runs
in a small part of every second, all processes in the same part. Priority alone is not enough: a process of low priority still
takes a slice now and then, and so makes many steps a little longer. Kept together in a twenty-fifth of the time, slices reach
so few steps that no percentile below the 96th sees them. A page that asks again no longer wants what it asked for before: that
process is killed. One process is kept ready, its imports done, so that an answer begins at once.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from penstock.service.server.http.faults import ApiError, ErrorKind, busy, invalid

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


WORKER = (sys.executable, "-m", "penstock.cli.app.worker")
MAX_RUNNING = 2
MAX_WAITING = 16
MAX_PER_CLIENT = 4
WALL_S = 240.0
"""Longest time a job may take, its waiting aside; its processor time is bounded more tightly by the worker itself."""
MAX_LINE_BYTES = 64 << 20
FREE = ("bench", "machine", "profile")
"""Tasks that give way to nothing: one makes the answers it would give way to, two would measure their own pauses."""


class ToolJob:
    """One question of one page."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.is_superseded = False

    def take(self, process: asyncio.subprocess.Process) -> None:
        """The process that works on it; one that came too late is ended at once."""
        self.process = process
        if self.is_superseded:
            self.kill()

    def kill(self) -> None:
        self.is_superseded = True
        if self.process is not None:
            _send(self.process, signal.SIGKILL)


class Tools:
    """Lives on the server's event loop. `is_busy` tells whether answers are being written."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._throttle = ToolThrottle(is_busy)
        self._jobs: dict[tuple[str, str], ToolJob] = {}
        self._room = asyncio.Semaphore(MAX_RUNNING)
        self._num_waiting = 0
        self._spare: asyncio.subprocess.Process | None = None
        self._beginning = asyncio.Lock()
        self._is_closed = False

    def close(self) -> None:
        """The server ends: so do runs under way, and no other begins."""
        self._is_closed = True
        for job in self._jobs.values():
            job.kill()

    async def run(self, client: str, lane: str, task: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What the tool says, line by line, its result last. `lane` names what of the client this replaces."""
        if sum(1 for owner, _ in self._jobs if owner == client) >= MAX_PER_CLIENT and (client, lane) not in self._jobs:
            raise ApiError(
                ErrorKind.RATE_LIMIT, "you have several runs under way; let one end first", code="rate_limit_exceeded"
            )
        if self._num_waiting >= MAX_WAITING:
            raise busy("many runs wait already; try again in a moment", 2)
        job = ToolJob()
        earlier = self._jobs.pop((client, lane), None)
        if earlier is not None:
            earlier.kill()
        self._jobs[client, lane] = job
        try:
            self._num_waiting += 1
            try:
                await self._room.acquire()
            finally:
                self._num_waiting -= 1
            try:
                async with asyncio.timeout(WALL_S):
                    async for line in self._lines(job, task):
                        yield line
            except TimeoutError:
                message = "the run took too long and was ended; ask for less, or when fewer answers are written"
                raise ApiError(ErrorKind.DEADLINE, message, code="run_too_long") from None
            finally:
                job.kill()
                self._room.release()
        finally:
            if self._jobs.get((client, lane)) is job:
                del self._jobs[client, lane]

    async def result(self, client: str, lane: str, task: Mapping[str, Any]) -> Any:
        """The tool's result alone."""
        async for line in self.run(client, lane, task):
            if "result" in line:
                return line["result"]
        raise ApiError(ErrorKind.INTERNAL, "the run ended without a result; the fault is ours")

    async def _lines(self, job: ToolJob, task: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if job.is_superseded or self._is_closed:
            raise self._ended()
        process = await self._begin(job)
        if task["task"] in FREE:
            self._throttle.free(process)
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("a worker without pipes")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(msgspec.json.encode(task) + b"\n")
            await stdin.drain()
            stdin.close()
        while line := await stdout.readline():
            try:
                news = json.loads(line)
            except ValueError:
                continue
            if "fault" in news:
                raise invalid(str(news["fault"]), "flags")
            yield news
        status = await process.wait()
        if job.is_superseded:
            raise self._ended()
        if status:
            raise invalid(
                "the run passed its bounds of time or memory and was ended; ask for less", "flags", "run_too_large"
            )

    def _ended(self) -> ApiError:
        if self._is_closed:
            return busy("the server is shutting down; ask again later", 1, code="shutting_down")
        return ApiError(ErrorKind.CONFLICT, "a later question of the same page replaced this one", code="superseded")

    async def _begin(self, job: ToolJob) -> asyncio.subprocess.Process:
        """Give the job the ready process, or a new one, and start the next: one is kept, however many jobs begin at once."""
        async with self._beginning:
            process, self._spare = self._spare, None
            if process is None or process.returncode is not None:
                process = await self._start()
            job.take(process)
            self._spare = await self._start()
        return process

    async def _start(self) -> asyncio.subprocess.Process:
        process = await _start()
        self._throttle.add(process)
        return process


async def _start() -> asyncio.subprocess.Process:
    """In a process group of its own: should the server be killed while the process pauses, the system wakes the orphan and
    hangs it up, however early in its life that is."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *WORKER,
        str(os.getpid()),
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_LINE_BYTES,
        preexec_fn=os.setpgrp,  # uvloop knows no process_group
    )
