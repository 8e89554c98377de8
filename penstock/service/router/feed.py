"""Follows what one replica says of its prefix cache (`kv_events.py`), for as long as it is in the fleet.

Each connection begins with all there is, so a gap, a broken connection and an engine that starts anew are all mended in one
way: connect again. While nothing is heard the last word stands; a replica that was gone holds nothing.
"""

import asyncio
import contextlib

from penstock.service import kv_events
from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.service.router.proxy.replica_pool import ReplicaPool
from penstock.service.upstream.connections import Headers

PAUSE_S = 0.2
FOREIGN_PAUSE_S = 10.0
"""Between two looks at a server that has no such stream."""


class BlockFollower:
    """One replica's; `run` until cancelled."""

    def __init__(self, fleet: LiveFleet, replica: LiveReplica, pool: ReplicaPool) -> None:
        self._fleet = fleet
        self._replica = replica
        self._pool = pool

    async def run(self) -> None:
        while True:
            status = 0
            if self._replica.state is ReplicaState.READY:
                with contextlib.suppress(OSError):
                    status = await self._follow()
            await asyncio.sleep(FOREIGN_PAUSE_S if status in (404, 405) else PAUSE_S)

    async def _follow(self) -> int:
        """Until the stream ends; its status. Raises OSError where there is no connection."""
        connection = await self._pool.connect()
        exchange = BlockExchange(self._fleet, self._replica)
        connection.send(self._pool.request("GET", f"{kv_events.EVENTS_PATH}?follow=1"), exchange)
        try:
            return await exchange.done
        finally:
            connection.abandon(exchange)


class BlockExchange:
    def __init__(self, fleet: LiveFleet, replica: LiveReplica) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._fleet = fleet
        self._replica = replica
        self._reader = kv_events.FrameReader()
        self._status = 0
        self._number: int | None = None

    def on_head(self, status: int, headers: Headers) -> None:
        self._status = status

    def on_part(self, data: bytes) -> None:
        if self._status != 200 or self.done.done():
            return
        try:
            frames = self._reader.feed(data)
        except ValueError:
            self._end()
            return
        for frame in frames:
            is_next = self._number is not None and frame.number == (self._number + 1) & 0xFFFFFFFF
            if not frame.is_whole and not is_next:
                self._end()  # something was missed: all there is, once more
                return
            self._number = frame.number
            self._fleet.learn_blocks(self._replica, frame)

    def on_end(self) -> None:
        self._end()

    def on_broken(self, message: str) -> None:
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(self._status)
