"""Replicas of one machine: servers in processes of their own, started, watched, restarted one by one, behind the router here.

A process that ends is started again, a little later each time it fails to last. A rolling restart takes one replica at a time:
it is drained, ended, started anew and ready before the next one is touched.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Sequence

from penstock.service.router.app import RouterApp
from penstock.service.router.fleet import ReplicaState

LOGGER = logging.getLogger(__name__)
LASTED_S = 10.0
"""A process that ran this long was a good one."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
END_S = 60.0
"""How long a process may take to finish what it has."""
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)/v1")


class LocalReplicas:
    def __init__(self, app: RouterApp, commands: Sequence[Sequence[str]], key: str) -> None:
        self._app = app
        self._commands = {f"r{number}": list(command) for number, command in enumerate(commands)}
        self._environment = {**os.environ, "PENSTOCK_REPLICA_KEY": key}
        for name in ("PENSTOCK_API_KEY", "PENSTOCK_ADMIN_KEY"):  # clients' keys open the router alone
            self._environment.pop(name, None)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._is_stopping = False
        self._rolling: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until `stop`."""
        await asyncio.gather(*(self._keep(name) for name in self._commands))

    def roll(self) -> None:
        """Restart all, one by one; nothing is lost and nobody is refused while another replica is ready."""
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.ensure_future(self._roll())

    async def stop(self) -> None:
        self._is_stopping = True
        if self._rolling is not None:
            self._rolling.cancel()
        processes = list(self._processes.values())
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            await self._ended(process)

    async def _keep(self, name: str) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_stopping:
            start_s = time.monotonic()
            status = await self._live(name)
            pause_s = FIRST_PAUSE_S if time.monotonic() - start_s > LASTED_S else min(pause_s * 2, LONGEST_PAUSE_S)
            if status and not self._is_stopping:
                LOGGER.warning("replica %s ended with status %d; it is started again", name, status)
                await asyncio.sleep(pause_s)

    async def _live(self, name: str) -> int:
        """One process, from its start to its end, which is ours too at the latest: then its input ends."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._commands[name], stdin=pipe, stdout=pipe, env=self._environment
        )
        self._processes[name] = process
        try:
            if process.stdout is not None:
                async for line in process.stdout:
                    found = _ADDRESS.search(line)
                    if found and self._app.fleet.get(name) is None:
                        self._app.add_replica(name, f"http://127.0.0.1:{int(found.group(1))}")
            return await process.wait()
        finally:
            if self._app.fleet.get(name) is not None:
                self._app.remove_replica(name)

    async def _roll(self) -> None:
        for name in self._commands:
            process, replica = self._processes.get(name), self._app.fleet.get(name)
            if process is None or replica is None:
                continue
            LOGGER.info("replica %s is restarted", name)
            self._app.fleet.drain(replica)
            while replica.num_pending:
                await asyncio.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await self._ended(process)
            while not self._is_ready(name, process):
                await asyncio.sleep(0.1)
        LOGGER.info("all replicas have been restarted")

    def _is_ready(self, name: str, old: asyncio.subprocess.Process) -> bool:
        replica = self._app.fleet.get(name)
        return self._processes.get(name) is not old and replica is not None and replica.state is ReplicaState.READY

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
