"""Ranks as threads of one process: the same worlds, groups and models, without the start of a process each."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import torch

from penstock.files import ModelFiles
from penstock.layers.decoder import Decoder
from penstock.models.ranks import Ranks
from penstock.models.sharding import ModelShard, shard_model, shard_recipes
from penstock.runtime.load.parameters import fill_model
from penstock.runtime.parallel.split import build_shard, join_shard
from penstock.runtime.parallel.world import Meeting, World, open_store

R = TypeVar("R")
CPU = torch.device("cpu")
HOST = "127.0.0.1"


def in_ranks(ranks: Ranks, body: Callable[[World], R], *, shares_memory: bool = True) -> list[R]:
    """What `body` gives for each rank, all of them at once."""
    store = open_store(HOST, 0, is_host=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(ranks.num_ranks) as pool:
        meeting = Meeting(HOST, store.port, folder=folder if shares_memory else None, step_s=30.0)

        def run(rank: int) -> R:
            with closing(World(ranks.place(rank), meeting, CPU, store if rank == 0 else None)) as world:
                return body(world)

        return [future.result() for future in [pool.submit(run, rank) for rank in range(ranks.num_ranks)]]


def load_shard(folder: Path, world: World, dtype: torch.dtype = torch.float32) -> tuple[Decoder, ModelShard]:
    files = ModelFiles(str(folder), folder)
    shard = shard_model(files.spec, world.place.ranks, world.place.rank)
    model = build_shard(shard, CPU, dtype)
    fill_model(model, shard_recipes(files.model.recipes, shard), files.checkpoint, CPU)
    join_shard(model, shard, world)
    return model.eval(), shard
