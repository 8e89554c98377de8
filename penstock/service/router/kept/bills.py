"""Fetches bills from replicas: tokens they made after a request was answered, or after its client had left."""

import asyncio
import contextlib
import time

import msgspec

from penstock.errors import StoreError
from penstock.service.gateway.accounts.later import LaterBill
from penstock.service.gateway.gateway import Gateway
from penstock.service.router.fleet import ReplicaState
from penstock.service.router.members import Members
from penstock.service.router.proxy.replica_pool import ReplicaPool
from penstock.service.upstream.connections import fetch

COLLECT_S = 1.0
"""Between two rounds, while there are requests whose bills are to come."""
TIMEOUT_S = 5.0
PATH = "/bills"


class _Bills(msgspec.Struct):
    data: list[LaterBill]


class BillCollector:
    """A bill leaves its replica once the gateway's database has it."""

    def __init__(self, gateway: Gateway, members: Members) -> None:
        self._gateway = gateway
        self._members = members

    async def run(self) -> None:
        while True:
            await asyncio.sleep(COLLECT_S)
            if self._gateway.num_later:
                await self.collect()

    async def collect(self) -> None:
        pools = [pool for one, pool in self._members if one.state is ReplicaState.READY and pool.is_ours]
        for pool in pools:
            with contextlib.suppress(OSError, StoreError, msgspec.DecodeError):
                await self._collect_from(pool)

    async def _collect_from(self, pool: ReplicaPool) -> None:
        found = await fetch(pool, pool.request("GET", PATH), TIMEOUT_S)
        if found.status != 200:
            return
        bills = msgspec.json.decode(found.body, type=_Bills).data
        if not bills:
            return
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(None, self._gateway.take_bills, bills, time.monotonic(), time.time())
        if done:
            await fetch(pool, pool.request("POST", PATH, body=msgspec.json.encode({"taken": done})), TIMEOUT_S)
