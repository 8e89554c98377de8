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


async def collect_bills(gateway: Gateway, members: Members) -> None:
    """Runs for ever. A bill leaves its replica once the gateway's database has it."""
    while True:
        await asyncio.sleep(COLLECT_S)
        pools = [pool for one, pool in members if one.state is ReplicaState.READY and pool.is_ours]
        for pool in pools if gateway.num_later else ():
            with contextlib.suppress(OSError, StoreError, msgspec.DecodeError):
                await _collect_from(pool, gateway)


async def _collect_from(pool: ReplicaPool, gateway: Gateway) -> None:
    found = await fetch(pool, pool.request("GET", PATH), TIMEOUT_S)
    bills = msgspec.json.decode(found.body, type=_Bills).data if found.status == 200 else []
    if not bills:
        return
    done = await asyncio.to_thread(gateway.take_bills, bills, time.monotonic(), time.time())
    if done:
        await fetch(pool, pool.request("POST", PATH, body=msgspec.json.encode({"taken": done})), TIMEOUT_S)
