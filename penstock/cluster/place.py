"""Room for replicas on a Ray cluster: one node's for a replica whose ranks share it."""

import asyncio
import contextlib
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from penstock.cluster.board import BOARD, NAMESPACE, Board
from penstock.cluster.replica import ReplicaActor, ServerReport
from penstock.errors import ConfigError

REPORT_S = 5.0
"""A replica that does not report in time is asked again; its node's death is told by Ray."""
MAX_SILENT = 3


class RayPlacement:
    """A placement group of one bundle, and the actor in it once there is room."""

    def __init__(self, group: Any, config: str, host: str | None) -> None:
        self._group = group
        self._host = host
        self._config = config
        self._actor: Any = None
        self._num_silent = 0
        self._is_gone = False

    async def report(self) -> ServerReport | None:
        if self._is_gone:
            return None
        if self._actor is None and not await self._begin():
            return ServerReport("", False, None, 0.0, (), "no node yet", "no node has room for it")
        try:
            report: ServerReport = await asyncio.wait_for(self._actor.report.remote(), REPORT_S)
        except TimeoutError:
            self._num_silent += 1
            if self._num_silent >= MAX_SILENT:
                return None
            return ServerReport("", False, None, 0.0, (), "silent", "")
        except ray.exceptions.RayError:
            self._is_gone = True
            return None
        self._num_silent = 0
        return report

    async def _begin(self) -> bool:
        """Start the actor where there is room; False while there is none."""
        try:
            await asyncio.wait_for(self._group.ready(), 0.5)
        except TimeoutError:
            return False
        bundle = self._group.bundle_specs[0]
        options = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=self._group),
            "max_restarts": 0,
        }
        self._actor = ray.remote(ReplicaActor).options(**options).remote(self._config, self._host)
        return True

    async def remove(self, drain_s: float) -> None:
        if self._actor is not None and not self._is_gone:
            if drain_s > 0.0:
                with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                    await asyncio.wait_for(self._actor.stop.remote(drain_s), drain_s + REPORT_S)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)
        remove_placement_group(self._group)


def on_this_machine(address: str) -> dict[str, str]:
    """A cluster on loopback addresses is found only by who says that he has such an address too."""
    host = "127.0.0.1" if address == "local" else address.rpartition(":")[0]
    return {"_node_ip_address": host} if host.startswith("127.") else {}


class RayCluster:
    """A connection to a Ray cluster: one that runs, or one begun here for as long as this process lives."""

    def __init__(self, address: str, num_cpus: float, num_gpus: float) -> None:
        self._host = "127.0.0.1" if address == "local" else None
        self._bundle = {"CPU": num_cpus} | ({"GPU": num_gpus} if num_gpus else {})
        try:
            ray.init(
                address=None if address == "local" else address,
                namespace=NAMESPACE,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                **on_this_machine(address),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"there is no Ray cluster at {address}: {error}; start one, or say --address local"
            ) from error
        most = max((node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        most_gpus = max((node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        if num_cpus > most or num_gpus > most_gpus:
            ray.shutdown()
            raise ConfigError(
                f"a replica takes {num_cpus:g} processors and {num_gpus:g} GPUs of one node, and the largest has {most:g} and "
                f"{most_gpus:g}; lower --tensor, --replica-cpus or --replica-gpus"
            )
        self.board = ray.remote(Board).options(name=BOARD, num_cpus=0, get_if_exists=True).remote()

    async def place(self, config: str) -> RayPlacement:
        return RayPlacement(placement_group([self._bundle], strategy="STRICT_PACK"), config, self._host)

    def num_nodes(self) -> int:
        return sum(bool(node["Alive"]) for node in ray.nodes())

    def close(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.board)
        ray.shutdown()
