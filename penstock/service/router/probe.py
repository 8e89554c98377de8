"""Looks at every replica over and over: does it answer, does it take requests, what does it serve, how full is it.

Readiness of our own servers is a real token through the whole path; others are asked at /health. Load is read from the metrics
that vLLM made usual, which ours, SGLang's and llama.cpp's servers have too.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable

import msgspec

from penstock.service.router.fleet import LiveFleet, LiveReplica, ReplicaState
from penstock.service.router.proxy.endpoint import ConnectionPool, fetch

READY_PATHS = ("/readyz", "/health")
TIMEOUT_S = 1.0
MODELS_EVERY = 10
"""Looks between two at the list of models."""

_LOAD = re.compile(rb"^(?:vllm:|sglang:|llamacpp:)(\w+?)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_WAITING = (b"num_requests_waiting", b"num_queue_reqs", b"requests_deferred")
_USAGE = (b"kv_cache_usage_perc", b"gpu_cache_usage_perc", b"token_usage", b"kv_cache_usage_ratio")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Probe:
    """One replica's watcher; `run` until cancelled."""

    def __init__(
        self,
        fleet: LiveFleet,
        replica: LiveReplica,
        pool: ConnectionPool,
        interval_s: float,
        changed: Callable[[LiveReplica], None],
    ) -> None:
        self._fleet = fleet
        self._replica = replica
        self._pool = pool
        self._interval_s = interval_s
        self._changed = changed
        self._path = READY_PATHS[0]
        self._num_looks = 0
        self._hurry = asyncio.Event()

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
        try:
            status = await self._ready_status()
        except ConnectionRefusedError:
            has_changed = self._fleet.hear(self._replica, ReplicaState.GONE, time.monotonic())
        except OSError:
            has_changed = self._fleet.miss(self._replica, time.monotonic())
        else:
            if status == 200 and (self._replica.models is None or self._num_looks % MODELS_EVERY == 0):
                await self._learn_models()
            self._num_looks += 1
            state = ReplicaState.READY if status == 200 else ReplicaState.UNREADY
            has_changed = self._fleet.hear(self._replica, state, time.monotonic())
            if status == 200:
                await self._learn_load()
        if has_changed:
            self._changed(self._replica)

    async def _ready_status(self) -> int:
        status, _ = await self._get(self._path)
        if status == 404 and self._path == READY_PATHS[0]:
            self._path = READY_PATHS[1]
            status, _ = await self._get(self._path)
        self._pool.is_ours = self._path == READY_PATHS[0]
        return status

    async def _learn_models(self) -> None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            status, body = await self._get("/v1/models")
            if status == 200:
                names = tuple(model.id for model in msgspec.json.decode(body, type=_Models).data)
                self._fleet.learn_models(self._replica, names)

    async def _learn_load(self) -> None:
        with contextlib.suppress(OSError):
            status, body = await self._get("/metrics")
            if status == 200:
                self._take_in(body)

    def _take_in(self, body: bytes) -> None:
        num_waiting, usage = 0, 0.0
        for name, value in _LOAD.findall(body):
            if name in _WAITING:
                num_waiting += int(float(value))
            elif name in _USAGE:
                usage = min(max(float(value), usage, 0.0), 1.0)
        self._fleet.learn_load(self._replica, num_waiting, usage)

    async def _get(self, path: str) -> tuple[int, bytes]:
        endpoint = self._pool.endpoint
        key = b"authorization: Bearer %b\r\n" % self._pool.key if self._pool.key else b""
        head = f"GET {endpoint.path}{path} HTTP/1.1\r\nhost: {endpoint.authority}\r\n".encode()
        return await fetch(self._pool, head + key + b"\r\n", TIMEOUT_S)
