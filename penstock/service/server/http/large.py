"""What large requests may take: turns on the event loop, time of threads that stand back.

Large pieces of work on the loop are done one at a time; between two of them whoever else is ready gets a turn. Tenants take
turns as well, so that one with many large requests does not keep another's waiting behind all of them.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator

NUM_TURNS = 4
"""Of the event loop between two pieces: a request that arrived meanwhile is read, run and answered in fewer."""
BACK = 10
"""How much nicer than everybody else work on long texts is."""


async def yield_to_others() -> None:
    """Let every task run that is ready."""
    for _ in range(NUM_TURNS):
        await asyncio.sleep(0)


class Turns:
    """Lives on one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, the one whose turn is next first."""

    @contextlib.asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """The only block of its kind that runs meanwhile."""
        if self._is_taken:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._pass_on()  # it was handed over just when nobody wanted it any more
                raise
        self._is_taken = True
        try:
            yield
            await yield_to_others()
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            tenant = next(iter(self._waiting))
            queue = self._waiting.pop(tenant)
            first = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not first.done():
                first.set_result(None)
                return  # it stays taken: by that one
        self._is_taken = False


def stand_back() -> None:
    """This thread computes when nobody else wants to: engine and event loop come first. Only Linux has niceness by thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + BACK)
