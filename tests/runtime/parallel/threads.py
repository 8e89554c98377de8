"""Ranks as threads of one process: the same worlds, groups and models, without the start of a process each."""

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import torch

from penstock.errors import RankLostError
from penstock.runtime.execution.parallel.frames import NO_MORE, encode
from penstock.runtime.execution.parallel.part import ModelPart, rank_runner
from penstock.runtime.execution.parallel.runner import LeadingRunner, follow
from penstock.runtime.execution.parallel.stage import StagedDecoder
from penstock.runtime.execution.parallel.world import Rendezvous, World, open_store
from penstock.runtime.files import ModelFiles
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.ranks import Ranks

R = TypeVar("R")
CPU = torch.device("cpu")
HOST = "127.0.0.1"


def in_ranks(ranks: Ranks, body: Callable[[World], R], *, shares_memory: bool = True) -> list[R]:
    """What `body` gives for each rank, all of them at once."""
    store = open_store(HOST, 0, is_host=True)
    all_done = threading.Barrier(ranks.num_ranks)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(ranks.num_ranks) as pool:
        rendezvous = Rendezvous(HOST, store.port, folder=folder if shares_memory else None, step_s=30.0)

        def run(rank: int) -> R:
            with closing(World(ranks.place(rank), rendezvous, CPU, store if rank == 0 else None)) as world:
                try:
                    result = body(world)
                except BaseException:
                    all_done.abort()
                    raise
                all_done.wait(60.0)
                return result

        futures = [pool.submit(run, rank) for rank in range(ranks.num_ranks)]
        faults = [fault for future in futures if (fault := future.exception()) is not None]
        for fault in sorted(faults, key=lambda fault: isinstance(fault, threading.BrokenBarrierError | RankLostError)):
            raise fault
        return [future.result() for future in futures]


def load_part(folder: Path, world: World, dtype: torch.dtype = torch.float32) -> Decoder | StagedDecoder:
    files = ModelFiles(str(folder), folder)
    part = ModelPart(files.spec, world.place.ranks, world.place.rank, CPU, dtype)
    part.load(files.model.recipes, files.checkpoint)
    return part.join(world)


def lead(ranks: Ranks, folder: Path, arena: tuple[int, int, int, int], body: Callable[[LeadingRunner], R]) -> R:
    """What `body` makes of a runner over all ranks."""

    def run(world: World) -> R | None:
        runner = rank_runner(load_part(folder, world), world, arena, None)
        if world.place.rank:
            follow(runner, world)
            return None
        try:
            return body(LeadingRunner(runner, world, ModelFiles(str(folder), folder).spec.vocab_size))
        finally:
            world.broadcast(encode(NO_MORE))

    result, *_ = in_ranks(ranks, run)
    assert result is not None
    return result
