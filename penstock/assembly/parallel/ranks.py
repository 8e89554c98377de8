"""An engine over several ranks, put together: the first begins the others, all load their part, agree on a size, and run.

The first rank is this process; it schedules. Another's whole life is `run_rank`.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.config import EngineConfig, split_address
from penstock.errors import ConfigError, RankLostError
from penstock.runtime import preload
from penstock.runtime.execution.device import Device, num_devices
from penstock.runtime.execution.parallel.frames import NO_MORE, encode
from penstock.runtime.execution.parallel.machine.processes import RankProcesses
from penstock.runtime.execution.parallel.world import PATIENT, Rendezvous, World
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.sizing import Sizing

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")
HOST = "127.0.0.1"
NODE_SETUP = "setup"
"""Where other machines find what they are to compute parts of."""
READY = "ready"
"""What a machine says that can compute its part; another says why it cannot."""


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What a rank's process is started with."""

    config: EngineConfig
    rank: int
    rendezvous: Rendezvous


def encoded(value: RankSetup | Sizing | EngineConfig) -> bytes:
    from msgspec.json import encode  # one engine in one process needs none

    return encode(value)


def decoded(data: bytes, type_: type[T]) -> T:
    from msgspec.json import decode

    return decode(data, type=type_)


def ranks_of(config: EngineConfig) -> Ranks:
    asked = config.parallel
    return Ranks(asked.tensor, asked.pipeline, asked.expert)


def ranks_of_node(ranks: Ranks, num_nodes: int, node: int) -> range:
    """Whole stages, one after another."""
    each = ranks.num_ranks // num_nodes
    return range(node * each, (node + 1) * each)


def place_on_node(config: EngineConfig, rank: int) -> tuple[int, int]:
    """Which of the ranks of its machine a rank is, and of how many."""
    each = ranks_of(config).num_ranks // config.parallel.nodes
    return rank % each, each


def check_machine(config: EngineConfig, device: Device) -> None:
    """Raise ConfigError if this machine has fewer devices than there are ranks on it."""
    ranks, parallel = ranks_of(config), config.parallel
    found, needed = num_devices(device), ranks.num_ranks // parallel.nodes
    if found is not None and found < needed and not parallel.share_gpu:
        raise ConfigError(
            f"{ranks} takes {needed} GPUs of a machine and this one has {found}; choose fewer ranks, spread stages over "
            "several machines with --nodes, or see with --share-gpu that the layout is right"
        )


class RankGroup:
    """The first rank's hold on all of them. `close` ends the others."""

    def __init__(self, config: EngineConfig, ranks: Ranks) -> None:
        self.ranks = ranks
        self._processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        """This process's before it became a rank's."""
        self._num_nodes = config.parallel.nodes
        if self._num_nodes > 1 and config.parallel.rendezvous is None:
            raise ConfigError("--nodes takes --rendezvous HOST:PORT, where the other machines find this one")
        host, port = (HOST, 0) if config.parallel.rendezvous is None else split_address(config.parallel.rendezvous)
        self.processes = RankProcesses(host, port)
        self._world: World | None = None
        folder, shares_gpu = str(self.processes.folder), config.parallel.share_gpu
        self._rendezvous = Rendezvous(host, self.processes.store.port, host, folder, shares_gpu=shares_gpu)
        if self._num_nodes > 1:
            self.processes.store.set(NODE_SETUP, encoded(config).decode())
        for rank in ranks_of_node(ranks, self._num_nodes, 0)[1:]:
            self.processes.take(rank, preload.take_rank(), encoded(RankSetup(config, rank, self._rendezvous)))

    def await_nodes(self) -> None:
        """Wait until the other machines have come; raise ConfigError if one of them cannot compute its part."""
        store = self.processes.store
        for node in range(1, self._num_nodes):
            LOGGER.info(
                "waiting for machine %d of %d: penstock rank %s", node + 1, self._num_nodes, self._rendezvous.address
            )
            store.wait([node_key(node)], PATIENT)
            fault = store.get(node_key(node)).decode()
            if fault != READY:
                raise ConfigError(f"machine {node + 1} of {self._num_nodes} cannot compute its part: {fault}")

    @property
    def world(self) -> World:
        if self._world is None:
            raise RankLostError("the ranks have not met")
        return self._world

    def join(self, device: Device) -> World:
        """Wait until all ranks have loaded their part."""
        try:
            self._world = World(self.ranks.place(0), self._rendezvous, device.torch_device, self.processes.store)
        except (RuntimeError, RankLostError) as error:
            raise RankLostError(f"the ranks could not meet: {self.processes.ended() or error}") from error
        self.processes.watch(range(1, self.ranks.num_ranks))
        return self._world

    def agree(self, own: Sizing) -> Sizing:
        """What every rank has room for."""
        store = self.world.store
        others = [store.get(_sizing_key(rank)) for rank in range(1, self.ranks.num_ranks)]
        agreed = smallest([own, *(decoded(each, Sizing) for each in others)])
        shutil.rmtree(self.processes.folder, ignore_errors=True)  # all have met: what they share needs no name any more
        self.world.broadcast(encoded(agreed))
        return _with_room_of(own, agreed)

    def close(self) -> None:
        if self._world is not None and self.processes.lost is None:
            with contextlib.suppress(RankLostError):
                self._world.broadcast(encode(NO_MORE))
        self.processes.close()
        if self._world is not None:
            self._world.close()
            self._world = None
        if self._processors is not None:
            os.sched_setaffinity(0, self._processors)


def agree_with_first(world: World, own: Sizing) -> Sizing:
    """Tell the first rank what there is room for here, and take what it says."""
    world.store.set(_sizing_key(world.place.rank), encoded(own).decode())
    return _with_room_of(own, decoded(world.recv_broadcast(), Sizing))


def smallest(sizings: Sequence[Sizing]) -> Sizing:
    kept = [each.num_kept_blocks for each in sizings if each.num_kept_blocks is not None]
    return replace(
        sizings[0],
        num_blocks=min(each.num_blocks for each in sizings),
        num_kept_blocks=min(kept) if kept else None,
        max_batch_tokens=min(each.max_batch_tokens for each in sizings),
    )


def _with_room_of(own: Sizing, agreed: Sizing) -> Sizing:
    names = "num_blocks", "num_kept_blocks", "max_batch_tokens"
    return replace(own, **{name: getattr(agreed, name) for name in names})


def node_key(node: int) -> str:
    """Where a machine says that it can."""
    return f"node/{node}"


def _sizing_key(rank: int) -> str:
    return f"sizing/{rank}"
