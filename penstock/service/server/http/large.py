"""What bursts and large requests may take: turns of the event loop, time of threads that stand back.

A burst begins over several turns of the loop; large pieces of work on it are done one at a time, and between two of them
whoever else is ready gets a turn. Tenants take turns as well, so that one with many requests does not keep another's waiting
behind all of them.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextvars import ContextVar

TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""Whose request the running task is."""
MAX_BEGUN = 4
"""Requests that begin in one turn: half a millisecond."""
BYTES_BEGUN = 1024
"""Of a body, so many count as another request: tokens are made of them in the same turn."""
NUM_TURNS = 4
"""Of the event loop between two pieces: a request that arrived meanwhile is read, run and answered in fewer."""
BACK = 10
"""How much nicer than everybody else work on long texts is."""


async def yield_to_others() -> None:
    """Let every task run that is ready."""
    for _ in range(NUM_TURNS):
        await asyncio.sleep(0)


class Waiters:
    """Tasks that wait, each on a future of its own. Tenants take turns; those of one tenant go on in the order they came."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}
        """By tenant, the one whose turn is next first; with the size of each."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, tenant: str, size: int = 1) -> "asyncio.Future[None]":
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append((mine, size))
        return mine

    def wake(self) -> int:
        """Let the next one go on; returns its size, 0 if nobody waits."""
        while self._queues:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            first, size = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            if not first.done():  # else given up
                first.set_result(None)
                return size
        return 0


class BurstGate:
    """A burst of requests begins over several turns of the event loop, so that nobody else waits for all of it."""

    def __init__(self, most: int = MAX_BEGUN) -> None:
        self._most = self._room = most
        self._is_renewing = False
        self._waiting = Waiters()

    async def take(self, tenant: str = "", num_bytes: int = 0) -> None:
        """Return in this turn if there is room in it for a request, or a body of so many bytes, else in one of the next. The
        first of a turn always has room."""
        size = 1 + num_bytes // BYTES_BEGUN
        if not self._is_renewing:
            self._is_renewing = True
            asyncio.get_running_loop().call_soon(self._renew)
        if self._room > 0 and not self._waiting:
            self._room -= size
            return
        await self._waiting.add(tenant, size)

    def _renew(self) -> None:
        self._room = self._most
        while self._room > 0 and (size := self._waiting.wake()):
            self._room -= size
        self._is_renewing = self._room < self._most
        if self._is_renewing:
            asyncio.get_running_loop().call_soon(self._renew)


class Turns:
    """Lives on one event loop at a time."""

    def __init__(self, most: int = 1) -> None:
        self._num_free = most
        self._waiting = Waiters()

    @contextlib.asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """One of so few blocks of its kind that run meanwhile."""
        if self._num_free:
            self._num_free -= 1
        else:
            mine = self._waiting.add(tenant)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._pass_on()  # it was handed over just when nobody wanted it any more
                raise
        try:
            yield
            await yield_to_others()
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        if not self._waiting.wake():
            self._num_free += 1


def stand_back() -> None:
    """This thread computes when nobody else wants to: engine and event loop come first. Only Linux has niceness by thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + BACK)
