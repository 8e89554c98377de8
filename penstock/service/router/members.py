"""The ways to the replicas: a pool of connections and a probe for each, made when it joins and ended when it leaves."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.service.config import RouterConfig
from penstock.service.gateway.settings import OUTSIDE
from penstock.service.router.fleet import LiveFleet, LiveReplica
from penstock.service.router.policy import REPORTED_POLICIES
from penstock.service.router.probe import Probe, follow_blocks
from penstock.service.router.proxy.replica_pool import ReplicaPool
from penstock.service.upstream.endpoint import endpoint_of


@dataclass(slots=True)
class Members:
    """`changed` receives every replica whose state a probe found changed."""

    _fleet: LiveFleet
    _config: RouterConfig
    _replica_key: str
    _changed: Callable[[LiveReplica], None]
    _tls: Callable[[], ssl.SSLContext]
    _pools: dict[str, ReplicaPool] = field(default_factory=dict)
    _probes: dict[str, Probe] = field(default_factory=dict)
    _tasks: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[LiveReplica, ReplicaPool]]:
        """Replicas that are ours to ask, with the way to each."""
        return ((one, self._pools[one.name]) for one in self._fleet if not one.is_outside)

    def pool(self, replica: LiveReplica) -> ReplicaPool:
        return self._pools[replica.name]

    def add(self, name: str, url: str) -> LiveReplica:
        """Raises ConfigError for a name that is taken or an address that is none."""
        endpoint = endpoint_of(url)
        pool = ReplicaPool(endpoint, key=self._replica_key, tls=self._tls)
        replica = self._fleet.add(name, url)
        probe = Probe(self._fleet, replica, pool, self._config.probe_s, self._changed)
        self._pools[name], self._probes[name] = pool, probe
        follows = [follow_blocks(self._fleet, replica, pool)] if self._config.policy in REPORTED_POLICIES else []
        self._tasks[name] = [asyncio.ensure_future(work) for work in (probe.run(), *follows)]
        return replica

    def add_outside(self, name: str, url: str, model: str, key: str) -> None:
        """An outside API, asked as `outside:NAME` by the gateway's rules alone."""
        pool = ReplicaPool(endpoint_of(url), key=key, model=model)
        self._fleet.add_outside(OUTSIDE + name, url, OUTSIDE + name)
        self._pools[OUTSIDE + name] = pool

    def remove(self, name: str) -> LiveReplica | None:
        """Answers it has begun go on to their end."""
        replica = self._fleet.remove(name)
        if replica is not None:
            for task in self._tasks.pop(name):
                task.cancel()
            del self._pools[name], self._probes[name]
        return replica

    def hurry(self, replica: LiveReplica) -> None:
        """Look at it now: something went wrong there."""
        if replica.name in self._probes:
            self._probes[replica.name].hurry()

    async def close(self) -> None:
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()
