"""Room for replicas on a Ray cluster: on one node where all ranks of one share it, on several where its stages are spread."""

import asyncio
import contextlib
import re
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from penstock.errors import ConfigError
from penstock.service.cluster.replica import NodeActor, ReplicaActor, ServerReport

NAMESPACE = "penstock"
BOARD = "board"
REPORT_S = 5.0
"""A replica that does not report in time is asked again; its node's death is told by Ray."""
MAX_SILENT = 3
_NODE_DIED = re.compile(r"node (?:has )?(?:died|is dead|was terminated)", re.IGNORECASE)
"""In Ray's words, whatever line they stand on."""


class RayPlacement:
    """A placement group of a bundle a node, and actors in it once there is room: the server's, and those of further nodes."""

    def __init__(self, group: Any, config: str, host: str | None) -> None:
        self._group = group
        self._host = host
        self._config = config
        self._actor: Any = None
        self._others: list[Any] = []
        self._num_silent = 0
        self._is_gone = False
        self.how_lost = "it does not report"

    async def report(self) -> ServerReport | None:
        if self._is_gone:
            return None
        try:
            if self._actor is None and not await self._begin():
                return ServerReport("", False, None, 0.0, (), "no node yet", "no node has room for it")
            report: ServerReport = await asyncio.wait_for(self._actor.report.remote(), REPORT_S)
            for other in self._others:
                await asyncio.wait_for(other.status.remote(), REPORT_S)
        except TimeoutError:
            self._num_silent += 1
            if self._num_silent >= MAX_SILENT:
                return None
            return ServerReport("", False, None, 0.0, (), "silent", "")
        except ray.exceptions.RayError as error:
            self._is_gone = True
            is_node = isinstance(error, ray.exceptions.NodeDiedError) or bool(_NODE_DIED.search(str(error)))
            self.how_lost = "its node is gone" if is_node else "its actor was killed"
            return None
        self._num_silent = 0
        return report

    async def _begin(self) -> bool:
        """Start the actor where there is room; False while there is none."""
        try:
            await asyncio.wait_for(self._group.ready(), 0.5)
        except TimeoutError:
            return False
        num_nodes = len(self._group.bundle_specs)
        self._actor = self._on_node(0, ReplicaActor, self._config, self._host, num_nodes)
        if num_nodes > 1:
            rendezvous = await self._actor.rendezvous.remote()
            self._others = [self._on_node(node, NodeActor, rendezvous) for node in range(1, num_nodes)]
        return True

    def _on_node(self, node: int, kind: type, *arguments: object) -> Any:
        bundle = self._group.bundle_specs[node]
        strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=node)
        options = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": strategy,
            "max_restarts": 0,
        }
        return ray.remote(kind).options(**options).remote(*arguments)

    async def remove(self, drain_s: float) -> None:
        if self._actor is not None and not self._is_gone:
            if drain_s > 0.0:
                with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                    await asyncio.wait_for(self._actor.stop.remote(drain_s), drain_s + REPORT_S)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)
        for other in self._others:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(other)
        remove_placement_group(self._group)


class Board:
    """Where the state of a running service is kept for `penstock status`: an actor with a name, written by whoever runs it."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def write(self, state: dict[str, Any]) -> None:
        self._state = state

    def read(self) -> dict[str, Any]:
        return self._state


def on_this_machine(address: str) -> dict[str, str]:
    """A cluster on loopback addresses is found only by who says that he has such an address too."""
    host = "127.0.0.1" if address == "local" else address.rpartition(":")[0]
    return {"_node_ip_address": host} if host.startswith("127.") else {}


def _join(address: str, way: str = "") -> None:
    """Connect this process to a cluster. Raises ConfigError, with the way out."""
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
        raise ConfigError(f"there is no Ray cluster at {address}: {error}{way}") from error


class RayCluster:
    """A connection to a Ray cluster: one that runs, or one begun here for as long as this process lives."""

    def __init__(self, address: str, num_cpus: float, num_gpus: float, num_nodes: int = 1) -> None:
        """Processors and GPUs are those of one node of a replica."""
        self._host = "127.0.0.1" if address == "local" else None
        self._num_nodes = num_nodes
        self._bundle = {"CPU": num_cpus} | ({"GPU": num_gpus} if num_gpus else {})
        _join(address, "; start one, or say --address local")
        most = max((node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        most_gpus = max((node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        if num_cpus > most or num_gpus > most_gpus:
            ray.shutdown()
            raise ConfigError(
                f"a replica takes {num_cpus:g} processors and {num_gpus:g} GPUs of one node, and the largest has {most:g} and "
                f"{most_gpus:g}; lower --tensor, replica-cpus or replica-gpus"
            )
        if num_nodes > self.num_nodes():
            found = self.num_nodes()
            ray.shutdown()
            raise ConfigError(
                f"a replica takes {num_nodes} nodes and the cluster has {found}; add some, or lower --nodes"
            )
        self._board = self._new_board({})

    def _new_board(self, state: dict[str, Any]) -> Any:
        """On this process's own node: it lives as long as we do."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = {"name": BOARD, "num_cpus": 0, "get_if_exists": True, "scheduling_strategy": here}
        return ray.remote(Board).options(**options).remote(state)

    async def show(self, state: dict[str, Any]) -> None:
        """Put up what `penstock status` reads. A board that was lost with its node is made anew: no service ends for it."""
        try:
            await asyncio.wait_for(self._board.write.remote(state), REPORT_S)
        except TimeoutError:
            pass
        except ray.exceptions.RayError:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                self._board = self._new_board(state)

    async def place(self, config: str) -> RayPlacement:
        strategy = "STRICT_PACK" if self._num_nodes == 1 else "STRICT_SPREAD"
        group = placement_group([self._bundle] * self._num_nodes, strategy=strategy)
        return RayPlacement(group, config, self._host)

    def num_nodes(self) -> int:
        return sum(bool(node["Alive"]) for node in ray.nodes())

    def close(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._board)
        ray.shutdown()


def look(address: str) -> dict[str, Any]:
    """The state of a running service, from any machine of its cluster."""
    _join(address)
    try:
        state: dict[str, Any] = ray.get(ray.get_actor(BOARD).read.remote(), timeout=10.0)
    except (ValueError, ray.exceptions.RayError) as error:
        raise ConfigError("no service of penstock up runs on that cluster") from error
    finally:
        ray.shutdown()
    if not state:
        raise ConfigError("the service on that cluster has only begun and said nothing yet; ask again")
    return state
