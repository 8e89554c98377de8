"""An engine over several ranks, put together: the first rank begins the others, all load their part, agree on a size, and run.

A composition root beside `assembly`. Nothing but the roots knows it.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from penstock.config import EngineConfig
from penstock.errors import ConfigError, RankLostError
from penstock.files import ModelFiles
from penstock.layers.decoder import Decoder
from penstock.models.ranks import Ranks
from penstock.models.sharding import ModelShard, shard_model, shard_recipes
from penstock.runtime.load import check_all_used, fill_model
from penstock.runtime.parallel.processes import RankProcesses
from penstock.runtime.parallel.runner import RankRunner, StageRunner
from penstock.runtime.parallel.split import build_shard, join_shard
from penstock.runtime.parallel.stage import StagedDecoder
from penstock.runtime.parallel.world import Meeting, World
from penstock.sizing import Sizing

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
