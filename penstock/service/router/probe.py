"""Looks at every replica over and over: does it answer, does it take requests, what does it serve, how full is it.

Readiness of our own servers is a real token through the whole path; others are asked at /health. Load is read from the metrics
that vLLM made usual, which ours, SGLang's and llama.cpp's servers have too.

What a replica says of its prefix cache (`kv_events.py`) is followed for as long as it is in the fleet. Each connection begins
with all there is, so a gap, a broken connection and an engine that starts anew are all mended in one way: connect again. While
nothing is heard the last word stands; a replica that was gone holds nothing.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from penstock.service import kv_events, marks
from penstock.service.edge.stamp import TRUST_HEADER, RelayStamp
from penstock.service.kv_events import OFFER_HEADER, read_offer
from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.service.router.proxy.replica_pool import ReplicaPool
from penstock.service.upstream.connections import Fetch, Fetched, fetch

READY_PATHS = ("/readyz", "/health")
TIMEOUT_S = 4.0
"""A machine may stand still for a while; how long nothing came is the fleet's to judge."""
SILENT = b'"silent"'
"""What our server says of itself while its engine is silent."""
MODELS_EVERY = 10
"""Looks between two at the list of models, where none of them comes and goes."""
LOADED = "loaded"

_LOAD = re.compile(rb"^(?:vllm:|sglang:|llamacpp:)(\w+?)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_WAITING = (b"num_requests_waiting", b"num_queue_reqs", b"requests_deferred")
_USAGE = (b"kv_cache_usage_perc", b"gpu_cache_usage_perc", b"token_usage", b"kv_cache_usage_ratio")


class _Status(msgspec.Struct):
    value: str = LOADED


class _Model(msgspec.Struct):
    id: str
    status: _Status | None = None
    """Of one that comes and goes: a model of several, or an adapter."""


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(slots=True)
class Probe:
    """One replica's watcher; `run` until cancelled."""

    _fleet: LiveFleet
    _replica: LiveReplica
    _pool: ReplicaPool
    _interval_s: float
    _changed: Callable[[LiveReplica], None]
    _path: str = READY_PATHS[0]
    _num_looks: int = 0
    _is_moving: bool = False
    """Some of its models come and go."""
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def hurry(self) -> None:
        """Look now: something went wrong there."""
        self._hurry.set()

    async def run(self) -> None:
        while True:
            await self.look()
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()

    async def look(self) -> None:
        replica = self._replica
        replica.asked_s = time.monotonic()
        if not replica.heard_s:
            replica.heard_s = replica.asked_s
        try:
            found = await self._ready_answer()
        except ConnectionRefusedError:
            has_changed = self._fleet.set_state(replica, ReplicaState.GONE, time.monotonic())
        except OSError:
            has_changed = self._fleet.miss(replica, time.monotonic())
        else:
            replica.asked_s, replica.heard_s = None, time.monotonic()
            is_ready = found.status == 200
            if is_ready and (replica.models is None or self._is_moving or self._num_looks % MODELS_EVERY == 0):
                is_ready = await self._learn_models()
            self._num_looks += 1
            state = ReplicaState.READY if is_ready else ReplicaState.UNREADY
            has_changed = self._fleet.set_state(replica, state, time.monotonic())
            if self._pool.is_ours and SILENT in found.body and not is_ready:
                replica.is_silent = has_changed = True
            if is_ready:
                await self._learn_load()
        if has_changed:
            self._changed(replica)

    async def _ready_answer(self) -> Fetched:
        found = await self._get(self._path)
        if self._path == READY_PATHS[0] and found.status in (200, 404) and not _is_our_answer(found):
            self._path = READY_PATHS[1]
            found = await self._get(self._path)
        self._pool.is_ours = self._path == READY_PATHS[0]
        return found

    async def _learn_models(self) -> bool:
        """False for a server whose list is none: whatever answers there, it is no server of models."""
        try:
            found = await self._get("/v1/models")
            self._pool.keeps_tenants = TRUST_HEADER in found.headers
            if found.status == 200:
                models = msgspec.json.decode(found.body, type=_Models).data
                self._is_moving = any(model.status is not None for model in models)
                loaded = frozenset(one.id for one in models if one.status is None or one.status.value == LOADED)
                self._fleet.learn_models(self._replica, tuple(model.id for model in models), loaded)
        except OSError:
            pass  # the next look may say
        except msgspec.DecodeError:
            return False
        return True

    async def _learn_load(self) -> None:
        with contextlib.suppress(OSError):
            found = await self._get("/metrics")
            if found.status == 200:
                self._take_in(found.body)
                self._fleet.learn_offer(self._replica, read_offer(found.headers.get(OFFER_HEADER, b"")))

    def _take_in(self, body: bytes) -> None:
        num_waiting, usage = 0, 0.0
        for name, value in _LOAD.findall(body):
            if name in _WAITING:
                num_waiting += int(float(value))
            elif name in _USAGE:
                usage = min(max(float(value), usage, 0.0), 1.0)
        self._fleet.learn_load(self._replica, num_waiting, usage)

    async def _get(self, path: str) -> Fetched:
        stamp = b"%b: %b\r\n" % (marks.RELAY_HEADER, RelayStamp(b"probe", 0).encode())
        return await fetch(self._pool, self._pool.request("GET", path, stamp), TIMEOUT_S)


def _is_our_answer(found: Fetched) -> bool:
    """Our servers say how they are as JSON; a page that some other server has for any path says nothing."""
    return found.headers.get(b"content-type", b"").startswith(b"application/json") and b'"status"' in found.body


PAUSE_S = 0.2
FOREIGN_PAUSE_S = 10.0
"""Between two looks at a server that has no such stream."""


async def follow_blocks(fleet: LiveFleet, replica: LiveReplica, pool: ReplicaPool) -> None:
    """Runs until cancelled."""
    while True:
        status = 0
        if replica.state is ReplicaState.READY:
            with contextlib.suppress(OSError):  # there is no connection, or none any more
                connection = await pool.connect()
                exchange = BlockExchange(fleet, replica)
                connection.send(pool.request("GET", f"{kv_events.EVENTS_PATH}?follow=1"), exchange)
                try:
                    status = (await exchange.done).status
                finally:
                    connection.abandon(exchange)
        await asyncio.sleep(FOREIGN_PAUSE_S if status in (404, 405) else PAUSE_S)


class BlockExchange(Fetch):
    """Read as it comes."""

    def __init__(self, fleet: LiveFleet, replica: LiveReplica) -> None:
        super().__init__()
        self._fleet = fleet
        self._replica = replica
        self._reader = kv_events.FrameReader()
        self._number: int | None = None

    def on_part(self, data: bytes) -> None:
        if self._status != 200 or self.done.done():
            return
        try:
            frames = self._reader.feed(data)
        except ValueError:
            self.on_end()
            return
        for frame in frames:
            is_next = self._number is not None and frame.number == (self._number + 1) & 0xFFFFFFFF
            if not frame.is_whole and not is_next:
                self.on_end()  # something was missed: all there is, once more
                return
            self._number = frame.number
            self._fleet.learn_blocks(self._replica, frame)
