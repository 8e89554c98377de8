"""An engine over several ranks, put together: the first rank begins the others, all load their part, agree on a size, and run.

A composition root beside `assembly`. Nothing but the roots knows it.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from penstock.config import EngineConfig
from penstock.errors import ConfigError, RankLostError
from penstock.files import ModelFiles
from penstock.layers.decoder import Decoder
from penstock.models.ranks import Ranks
from penstock.models.sharding import ModelShard, shard_model, shard_recipes
from penstock.models.weights import sources
from penstock.runtime.load import check_all_used, fill_model
from penstock.runtime.parallel.frames import encode_batch
from penstock.runtime.parallel.processes import RankProcesses
from penstock.runtime.parallel.runner import RankRunner, StageRunner
from penstock.runtime.parallel.split import build_shard, join_shard
from penstock.runtime.parallel.stage import StagedDecoder
from penstock.runtime.parallel.world import Meeting, World
from penstock.runtime.runner import ModelRunner
from penstock.sizing import Sizing

HOST = "127.0.0.1"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What a rank's process is told."""

    config: EngineConfig
    rank: int
    meeting: Meeting


def encode_setup(setup: RankSetup) -> bytes:
    return msgspec.json.encode(setup)


def decode_setup(line: bytes) -> RankSetup:
    return msgspec.json.decode(line, type=RankSetup)


def ranks_of(config: EngineConfig) -> Ranks:
    asked = config.parallel
    return Ranks(asked.tensor, asked.pipeline, asked.expert)


def check_machine(ranks: Ranks, device_type: str) -> None:
    """Raise ConfigError if this machine has fewer devices than there are ranks."""
    if device_type == "cuda" and torch.cuda.device_count() < ranks.num_ranks:
        raise ConfigError(
            f"{ranks} takes {ranks.num_ranks} GPUs and this machine has {torch.cuda.device_count()}; choose fewer ranks, or "
            "place them on several machines with penstock up"
        )
    if device_type == "cpu" and ranks.num_ranks > (os.cpu_count() or 1):
        print(f"penstock: {ranks.num_ranks} ranks share {os.cpu_count()} processors", file=sys.stderr)


class RankGroup:
    """The first rank's hold on all of them. `close` ends the others."""

    def __init__(self, config: EngineConfig, ranks: Ranks) -> None:
        self.ranks = ranks
        self.world: World | None = None
        self.processes = RankProcesses()
        self._meeting = Meeting(HOST, self.processes.store.port, folder=str(self.processes.folder))
        for rank in range(1, ranks.num_ranks):
            setup = RankSetup(config, rank, self._meeting)
            self.processes.begin(rank, [sys.executable, "-m", "penstock.cli.rank"], encode_setup(setup))

    def join(self, device: torch.device) -> World:
        """Wait until all ranks have loaded their part."""
        try:
            self.world = World(self.ranks.place(0), self._meeting, device, self.processes.store)
        except RuntimeError as error:
            fault = self.processes.ended() or str(error)
            raise RankLostError(f"the ranks could not meet: {fault}") from error
        self.processes.watch()
        return self.world

    def agree(self, own: Sizing) -> Sizing:
        """What every rank has room for."""
        world = self.joined
        others = [world.store.get(sizing_key(rank)) for rank in range(1, self.ranks.num_ranks)]
        agreed = smallest([own, *(msgspec.json.decode(each, type=Sizing) for each in others)])
        world.announce(msgspec.json.encode(agreed))
        return with_room_of(own, agreed)

    @property
    def joined(self) -> World:
        if self.world is None:
            raise RankLostError("the ranks have not met")
        return self.world

    def close(self) -> None:
        if self.world is not None and self.processes.lost is None:
            with contextlib.suppress(RankLostError):
                self.world.announce(encode_batch(None))
        self.processes.close()


def sizing_key(rank: int) -> str:
    return f"sizing/{rank}"


def agree_as_told(world: World, own: Sizing) -> Sizing:
    """Tell the first rank what there is room for here, and take what it says."""
    world.store.set(sizing_key(world.place.rank), msgspec.json.encode(own))
    return with_room_of(own, msgspec.json.decode(world.listen(), type=Sizing))


def smallest(sizings: Sequence[Sizing]) -> Sizing:
    kept = [each.num_kept_blocks for each in sizings if each.num_kept_blocks is not None]
    return replace(
        sizings[0],
        num_blocks=min(each.num_blocks for each in sizings),
        num_kept_blocks=min(kept) if kept else None,
        max_batch_tokens=min(each.max_batch_tokens for each in sizings),
    )


def with_room_of(own: Sizing, agreed: Sizing) -> Sizing:
    return replace(
        own,
        num_blocks=agreed.num_blocks,
        num_kept_blocks=agreed.num_kept_blocks,
        max_batch_tokens=agreed.max_batch_tokens,
    )


def load_part(
    files: ModelFiles, ranks: Ranks, rank: int, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
) -> tuple[Decoder, ModelShard]:
    """A rank's own part, read from its part of the files. It computes nothing until it has joined the others."""
    shard = shard_model(files.spec, ranks, rank)
    recipes = files.model.recipes
    check_all_used(files.checkpoint.names, {name for recipe in recipes.values() for name in sources(recipe)}, files.spec)
    model = build_shard(shard, device, dtype)
    fill_model(model, shard_recipes(recipes, shard), files.checkpoint, device, progress)
    return model, shard


def joined_model(model: Decoder, shard: ModelShard, world: World) -> Decoder | StagedDecoder:
    join_shard(model, shard, world)
    model.eval()
    return StagedDecoder(model, world) if world.place.ranks.pipeline > 1 else model


def make_runner(
    network: Decoder | StagedDecoder, world: World, room: tuple[int, int, int, int], cache_dtype: torch.dtype | None
) -> RankRunner:
    if isinstance(network, StagedDecoder):
        return StageRunner(network, world, *room, cache_dtype=cache_dtype)
    return ModelRunner(network, *room, cache_dtype)
