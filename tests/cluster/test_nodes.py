"""A cluster of three raylets on one machine: real ranks on it, a node killed with -9, load that comes and goes."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.service.cluster.place import BOARD, NAMESPACE
from tests.cluster.upping import ROOT, load, until, up
from tests.real import DEFAULT, model_path

pytestmark = pytest.mark.slow
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
"""Loopback addresses, one a node: Ray tells nodes of one address apart, people do not."""


class Nodes:
    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        rest = {"num_cpus": 2, "object_store_memory": 80 << 20}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"node_ip_address": NODES[0], "include_dashboard": False, **rest}
        )
        self.others = [self.cluster.add_node(node_ip_address=address, **rest) for address in NODES[1:]]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_node_is_killed_and_no_request_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    flags = (str(model_path(DEFAULT)), "--tensor", "2", "--dtype", "float32", "--max-context", "512")
    address = nodes.cluster.address
    with up(tmp_path, *flags, "--min-replicas", "2", "--max-replicas", "2", address=address) as service:
        service.await_words("is ready on", 2)
        placed = {replica["node"] for replica in service.status()["replicas"]}
        assert len(placed) == 2, "two ranks take a whole node"
        victim = next(node for node in nodes.others if node.node_ip_address in placed)

        async def law() -> list[str]:
            running = asyncio.create_task(load(service.url, 500, 16, 4))
            await asyncio.sleep(5.0)
            nodes.cluster.remove_node(victim, allow_graceful=False)
            return await running

        assert asyncio.run(law()) == []
        service.await_words("is lost: its node is gone")
        service.await_words("is ready on", 3)
        assert service.stop() == 0


@pytest.mark.filterwarnings("ignore")
def test_what_status_reads_and_an_actor_are_lost_and_the_service_goes_on(nodes: Nodes, tmp_path: Path) -> None:
    import ray

    flags = ("oracle:step_ms=5,vocab=256", "replica-cpus=1", "--num-blocks", "2048")
    with up(tmp_path, *flags, address=nodes.cluster.address) as service:
        service.await_words("is ready on")
        ray.init(address=nodes.cluster.address, _node_ip_address=NODES[0], log_to_driver=False, logging_level="error")
        ray.kill(ray.get_actor(BOARD, namespace=NAMESPACE))
        ray.shutdown()

        def is_shown() -> bool:
            try:
                return bool(service.status()["replicas"])
            except subprocess.CalledProcessError:
                return False

        until(is_shown, service.words)
        assert asyncio.run(load(service.url, 20, 8, 8)) == []
        (actor,) = pids("ray::ReplicaActor")
        os.kill(actor, signal.SIGKILL)
        service.await_words("is lost: its actor was killed")
        service.await_words("is ready on", 2)
        assert asyncio.run(load(service.url, 20, 8, 8)) == []
        assert service.stop() == 0


def pids(words: str) -> list[int]:
    """Processes that call themselves so."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if line.split(maxsplit=1)[1].startswith(words)]


@pytest.mark.filterwarnings("ignore")
def test_stages_of_a_replica_lie_on_two_nodes_and_a_lost_one_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    """Three nodes: one is spare, and takes the place of the one that is killed."""
    flags = (str(model_path(DEFAULT)), "--pipeline", "2", "--nodes", "2", "replica-cpus=2", "--max-context", "512")
    with up(tmp_path, *flags, address=nodes.cluster.address) as service:
        service.await_words("is ready on")
        assert asyncio.run(load(service.url, 20, 8, 8)) == []
        (replica,) = service.status()["replicas"]
        listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        (there,) = re.findall(r"server_process rank \S+ --here (\S+)", listed)
        assert there != replica["node"]
        victim = next(node for node in nodes.others if node.node_ip_address in (there, replica["node"]))

        async def law() -> list[str]:
            running = asyncio.create_task(load(service.url, 60, 8, 16))
            await asyncio.sleep(1.0)
            nodes.cluster.remove_node(victim, allow_graceful=False)
            return await running

        assert asyncio.run(law()) == []
        service.await_words("is ready on", 2)
        assert service.stop() == 0


@pytest.mark.filterwarnings("ignore")
def test_replicas_follow_the_load_down_to_none_and_back(nodes: Nodes, tmp_path: Path) -> None:
    flags = ("oracle:step_ms=20,vocab=256", "--min-replicas", "0", "--max-replicas", "3", "pending-target=4")
    more = ("down-delay-s=3", "replica-cpus=1", "--num-blocks", "2048")
    with up(tmp_path, *flags, *more, address=nodes.cluster.address) as service:
        assert asyncio.run(load(service.url, 1, 1, 20)) == [], "the first request waits for a replica"
        service.await_words("is ready on")
        (first,) = service.status()["replicas"]
        assert {name for name, _ in first["parts"]} >= {"begin the process", "make the model"}
        assert asyncio.run(load(service.url, 120, 24, 100)) == []
        service.await_words("is ready on", 3)
        until(lambda: service.status()["replicas"] == [], service.words)
        assert asyncio.run(load(service.url, 1, 1, 20)) == [], "and it comes back"
        assert service.stop() == 0
    assert not [pid for pid in service.server_pids() if os.path.exists(f"/proc/{pid}")]
