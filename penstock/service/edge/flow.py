"""Clients that do not read: nothing more is read from them while they owe us room, and after a while they are cut off."""

import asyncio
from collections.abc import Iterable
from typing import Any

STALL_S = 60.0
"""How long a client may take nothing of what was written before it is cut off."""


class Flow:
    """Reading and writing of one connection. Reading goes on only while it is wanted and writing is not paused, so that what a
    client makes us write stays within one buffer, whatever it sends.
    """

    __slots__ = ("_is_writable", "_transport", "read_paused", "wants_reading", "write_paused")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self.wants_reading = True
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    async def drain(self) -> None:
        await self._is_writable.wait()

    def pause_reading(self) -> None:
        self.wants_reading = False
        self._settle()

    def resume_reading(self) -> None:
        self.wants_reading = True
        self._settle()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._is_writable.clear()
        self._settle()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._is_writable.set()
        self._settle()

    def _settle(self) -> None:
        is_paused = self.write_paused or not self.wants_reading
        if is_paused != self.read_paused and not self._transport.is_closing():
            self.read_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()


class StallWatch:
    """Looks at what connections have not sent yet. One whose rest has not shrunk for `stall_s` is cut off, be it in the middle
    of an answer, between two or closing: nothing but a client that reads can help it.
    """

    def __init__(self, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._seen: dict[Any, tuple[int, float]] = {}
        """By connection: what was left at the last look, and since when it has not shrunk."""

    def sweep(self, connections: Iterable[Any], now: float) -> None:
        before, self._seen = self._seen, {}
        for connection in tuple(connections):
            transport = connection.transport
            num_left = transport.get_write_buffer_size() if transport is not None else 0
            if not num_left:
                continue
            last, since_s = before.get(connection, (num_left, now))
            self._seen[connection] = (num_left, now if num_left < last else since_s)
            if now - self._seen[connection][1] >= self._stall_s:
                transport.abort()
