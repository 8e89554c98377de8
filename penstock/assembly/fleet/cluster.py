"""A service on a cluster from its start to its end: Ray, the controller of replicas, the router in front, signals, state."""

import asyncio
import json
import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.assembly.banner import url_of
from penstock.assembly.fleet.routing import listen_for
from penstock.assembly.serving import DROPPED_STATUS, bind, package_version
from penstock.console.files import write_file
from penstock.errors import ConfigError
from penstock.log import say, set_up
from penstock.service.cluster.controller import Controller, ReplicaPhase
from penstock.service.cluster.place import RayCluster
from penstock.service.cluster.scaling import ArrivalCurve, Scaling, ServedRate
from penstock.service.config import ClusterConfig, ListenConfig, RouterConfig
from penstock.service.router.app import RouterApp
from penstock.service.router.fleet import LiveReplica

LOGGER = logging.getLogger(__name__)
COLD = "cold"
"""Stands in the fleet for replicas that can be started: a request that finds no other waits for one."""
PENDING, PENDING_PREDICTED = 16.0, 64.0
"""Pending requests a replica, unless asked: where misses are predicted they are no more than a net."""
CURVE_S = 60.0
"""Between two writings of the curve of arrivals."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All settings of a service on a cluster."""

    config: ClusterConfig
    listen: ListenConfig
    router: RouterConfig
    serve: str
    """What each replica serves: a file of `penstock serve`, as text."""
    replica_key: str
    num_cpus: float
    num_gpus: float
    """Of one node of a replica, as processors are."""
    num_nodes: int = 1
    """Of a replica."""


class RouterTraffic:
    """The router as the controller sees it."""

    def __init__(self, app: RouterApp) -> None:
        self._app = app
        self._num_gone = 0
        """Served by replicas that are no more."""
        app.fleet.add(COLD, "http://127.0.0.1:9")

    @property
    def num_waiting(self) -> int:
        return self._app.num_parked

    @property
    def num_served(self) -> int:
        return self._num_gone + sum(replica.num_served for replica in self._app.fleet)

    def load(self, name: str) -> LiveReplica:
        """One that has left has nothing to do."""
        return self._app.fleet.get(name) or LiveReplica(name, "")

    def add(self, name: str, url: str) -> None:
        self._app.add_replica(name, url)

    def drain(self, name: str) -> None:
        replica = self._app.fleet.get(name)
        if replica is not None:
            self._app.fleet.drain(replica)

    def remove(self, name: str) -> None:
        replica = self._app.fleet.get(name)
        if replica is not None:
            self._num_gone += replica.num_served
            self._app.remove_replica(name)


def run_cluster(cluster: Cluster) -> int:
    """Serve until asked to stop; returns the exit status: 0 only if no answer was cut off."""
    import uvloop

    set_up()
    ray_cluster = RayCluster(cluster.config.address, cluster.num_cpus, cluster.num_gpus, cluster.num_nodes)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(cluster, ray_cluster))
    finally:
        ray_cluster.close()


async def _run(cluster: Cluster, ray_cluster: RayCluster) -> int:
    loop = asyncio.get_running_loop()
    app = RouterApp(cluster.listen, cluster.router, replica_key=cluster.replica_key, version=package_version())
    asked = cluster.config
    scaling = Scaling(
        asked.min_replicas,
        asked.max_replicas,
        asked.pending_target or (PENDING if asked.ttft_target_s is None else PENDING_PREDICTED),
        down_delay_s=asked.down_delay_s,
        interval_s=asked.look_s,
        kv_target=asked.kv_target,
        ttft_s=asked.ttft_target_s,
        window_s=asked.window_s,
    )
    curve = CurveFile(asked.arrival_curve) if asked.arrival_curve is not None else None
    controller = Controller(
        scaling,
        lambda _: ray_cluster.place(cluster.serve),
        RouterTraffic(app),
        cluster.listen.drain_s,
        time.monotonic,
        curve.curve if curve is not None else None,
        served=ServedRate(curve.served_per_s if curve is not None else 0.0),
    )
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listener = bind(cluster.listen.host, cluster.listen.port)
    server = await listen_for(app, listener, app.tls.listener)
    app.start()
    url = url_of(cluster.listen, listener.getsockname()[1])
    say(f"penstock serves on {url}: {asked.min_replicas} to {asked.max_replicas} replicas")
    keeping = asyncio.ensure_future(_keep(controller, ray_cluster, url, asked.look_s))
    saving = asyncio.ensure_future(curve.keep(controller.served)) if curve is not None else None
    try:
        await asyncio.wait((keeping, asyncio.ensure_future(stopping.wait())), return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        server.close()
        num_dropped = await app.drain(cluster.listen.drain_s)
        return DROPPED_STATUS if num_dropped else 0
    finally:
        keeping.cancel()
        if curve is not None and saving is not None:
            saving.cancel()
            curve.save(controller.served)
        await controller.stop()
        server.close()
        await app.close()


class CurveFile:
    """Requests a second by the time of day, and what a replica serves, kept from run to run."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is none of ours."""
        self._path = path
        kept: dict[str, Any] = {"per_s": [], "served_per_s": 0.0}
        try:
            kept |= json.loads(path.read_text())
            self.curve = ArrivalCurve(kept["per_s"])
            self.served_per_s = float(kept["served_per_s"])
        except FileNotFoundError:
            self.curve, self.served_per_s = ArrivalCurve(), 0.0
        except (OSError, ValueError, TypeError, ConfigError) as error:
            raise ConfigError(f"arrival-curve={path} is no curve of arrivals: {error}; name another file") from error

    def save(self, served: ServedRate) -> None:
        """Whole or not at all; what cannot be written is said and does no harm."""
        text = json.dumps({"per_s": self.curve.per_s, "served_per_s": served.per_s})
        try:
            write_file(self._path, text)
        except ConfigError as error:
            LOGGER.error("the curve of arrivals is lost: %s", error)

    async def keep(self, served: ServedRate) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(CURVE_S)
            self.save(served)


async def _keep(controller: Controller, ray_cluster: RayCluster, url: str, look_s: float) -> None:
    num_logged = 0
    while True:
        await controller.look()
        num_new, num_logged = controller.num_noted - num_logged, controller.num_noted
        for event in controller.events[-num_new:] if num_new else ():
            LOGGER.info("%s", event)
        await ray_cluster.show(state_of(controller, url, ray_cluster.num_nodes()))
        await asyncio.sleep(look_s)


def state_of(controller: Controller, url: str, num_nodes: int) -> dict[str, Any]:
    """What `penstock status` shows: values only."""
    return {
        "url": url,
        "num_nodes": num_nodes,
        "num_pending": controller.num_pending,
        "num_waiting": controller.traffic.num_waiting,
        "replicas": [
            {
                "name": replica.name,
                "phase": replica.phase.value,
                "node": replica.report.node if replica.report else "",
                "url": replica.report.url if replica.report else "",
                "num_pending": controller.traffic.load(replica.name).num_pending,
                "start_s": replica.report.start_s if replica.report else 0.0,
                "parts": list(replica.report.parts)
                if replica.report and replica.phase is not ReplicaPhase.STARTING
                else [],
            }
            for replica in controller.replicas.values()
        ],
        "events": controller.events[-10:],
    }
