"""An engine over several ranks, put together: the first begins the others, all load their part, agree on a size, and run.

The first rank is this process; it schedules. Another's whole life is `run_rank`.
"""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.config import EngineConfig
from penstock.errors import ConfigError, RankLostError
from penstock.models.ranks import Ranks
from penstock.runtime.device import Device, num_devices
from penstock.runtime.parallel.frames import encode_step
from penstock.runtime.parallel.processes import RankProcesses
from penstock.runtime.parallel.world import Meeting, World
from penstock.sizing import Sizing

HOST = "127.0.0.1"
COMMAND = (sys.executable, "-m", "penstock.assembly.rank_worker")


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What a rank's process is started with."""

    config: EngineConfig
    rank: int
    meeting: Meeting


def encode_setup(setup: RankSetup) -> bytes:
    return _encoded(setup)


def decode_setup(line: bytes) -> RankSetup:
    from msgspec.json import decode

    return decode(line, type=RankSetup)


def _encoded(value: RankSetup | Sizing) -> bytes:
    from msgspec.json import encode  # one engine in one process needs none

    return encode(value)


def _sizing(data: bytes) -> Sizing:
    from msgspec.json import decode

    return decode(data, type=Sizing)


def ranks_of(config: EngineConfig) -> Ranks:
    asked = config.parallel
    return Ranks(asked.tensor, asked.pipeline, asked.expert)


def check_machine(ranks: Ranks, device: Device) -> None:
    """Raise ConfigError if this machine has fewer devices than there are ranks."""
    found = num_devices(device)
    if found is not None and found < ranks.num_ranks:
        raise ConfigError(
            f"{ranks} takes {ranks.num_ranks} GPUs and this machine has {found}; choose fewer ranks, or place them on several "
            "machines with penstock up"
        )


class RankGroup:
    """The first rank's hold on all of them. `close` ends the others."""

    def __init__(self, config: EngineConfig, ranks: Ranks) -> None:
        self.ranks = ranks
        self.processes = RankProcesses(HOST)
        self._world: World | None = None
        self._meeting = Meeting(HOST, self.processes.store.port, folder=str(self.processes.folder))
        for rank in range(1, ranks.num_ranks):
            self.processes.begin(rank, COMMAND, encode_setup(RankSetup(config, rank, self._meeting)))

    @property
    def world(self) -> World:
        if self._world is None:
            raise RankLostError("the ranks have not met")
        return self._world

    def join(self, device: Device) -> World:
        """Wait until all ranks have loaded their part."""
        try:
            self._world = World(self.ranks.place(0), self._meeting, device.torch_device, self.processes.store)
        except (RuntimeError, RankLostError) as error:
            raise RankLostError(f"the ranks could not meet: {self.processes.ended() or error}") from error
        self.processes.watch()
        return self._world

    def agree(self, own: Sizing) -> Sizing:
        """What every rank has room for."""
        store = self.world.store
        others = [store.get(_sizing_key(rank)) for rank in range(1, self.ranks.num_ranks)]
        agreed = smallest([own, *(_sizing(each) for each in others)])
        shutil.rmtree(self.processes.folder, ignore_errors=True)  # all have met: what they share needs no name any more
        self.world.announce(_encoded(agreed))
        return _with_room_of(own, agreed)

    def close(self) -> None:
        if self._world is not None and self.processes.lost is None:
            with contextlib.suppress(RankLostError):
                self._world.announce(encode_step(None))
        self.processes.close()
        if self._world is not None:
            self._world.close()
            self._world = None


def agree_with_first(world: World, own: Sizing) -> Sizing:
    """Tell the first rank what there is room for here, and take what it says."""
    world.store.set(_sizing_key(world.place.rank), _encoded(own).decode())
    return _with_room_of(own, _sizing(world.listen()))


def smallest(sizings: Sequence[Sizing]) -> Sizing:
    kept = [each.num_kept_blocks for each in sizings if each.num_kept_blocks is not None]
    return replace(
        sizings[0],
        num_blocks=min(each.num_blocks for each in sizings),
        num_kept_blocks=min(kept) if kept else None,
        max_batch_tokens=min(each.max_batch_tokens for each in sizings),
    )


def _with_room_of(own: Sizing, agreed: Sizing) -> Sizing:
    return replace(
        own,
        num_blocks=agreed.num_blocks,
        num_kept_blocks=agreed.num_kept_blocks,
        max_batch_tokens=agreed.max_batch_tokens,
    )


def _sizing_key(rank: int) -> str:
    return f"sizing/{rank}"
