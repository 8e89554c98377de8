"""A rank's own part of a model: read from its part of the files, joined to the others, made ready to run."""

from collections.abc import Callable

import torch

from penstock.formats.checkpoint import Checkpoint
from penstock.layers.decoder import Decoder
from penstock.layers.parallel import VocabularyScores
from penstock.models.ranks import Ranks
from penstock.models.sharding import ModelShard, shard_model, shard_recipes
from penstock.models.spec import ModelSpec
from penstock.models.weights import Recipes, sources
from penstock.runtime.cuda.runner import CudaRunner
from penstock.runtime.eager.runner import ModelRunner
from penstock.runtime.load.parameters import check_all_used, fill_dummy, fill_model
from penstock.runtime.parallel.forward import SharedRunner
from penstock.runtime.parallel.native import NativePart
from penstock.runtime.parallel.runner import RankRunner, StageRunner
from penstock.runtime.parallel.split import build_shard, join_shard
from penstock.runtime.parallel.stage import StagedDecoder
from penstock.runtime.parallel.world import World

Progress = Callable[[int, int], None]


class ModelPart:
    """A shard and its modules. It computes nothing until it has joined the others."""

    def __init__(self, spec: ModelSpec, ranks: Ranks, rank: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shard: ModelShard = shard_model(spec, ranks, rank)
        self.device = device
        self.model: Decoder = build_shard(self.shard, device, dtype)

    def load(
        self, recipes: Recipes, checkpoint: Checkpoint, progress: Progress | None = None, packs: bool = False
    ) -> None:
        used = {name for recipe in recipes.values() for name in sources(recipe)}
        check_all_used(checkpoint.names, used, self.shard.whole)
        fill_model(self.model, shard_recipes(recipes, self.shard), checkpoint, self.device, progress, packs)

    def make_up(self) -> None:
        """Random numbers, for benchmarks."""
        fill_dummy(self.model, self.device, seed=self.shard.place.rank)

    def join(self, world: World) -> Decoder | StagedDecoder:
        join_shard(self.model, self.shard, world)
        self.model.eval()
        return StagedDecoder(self.model, world) if world.place.ranks.pipeline > 1 else self.model


def rank_runner(
    network: object, world: World, room: tuple[int, int, int, int], cache_dtype: torch.dtype | None
) -> RankRunner:
    if isinstance(network, StagedDecoder) or (isinstance(network, NativePart) and world.place.ranks.pipeline > 1):
        return StageRunner(network, world, room, cache_dtype)
    if isinstance(network, NativePart):
        return SharedRunner(network, network, room, cache_dtype)
    if not isinstance(network, Decoder):
        raise TypeError(f"{type(network).__name__} is no part of a model")
    if world.device.type == "cuda":
        return CudaRunner(network, *room, cache_dtype)
    table = network.embedding if network.output is None else network.output
    if isinstance(table, VocabularyScores):
        return SharedRunner(network, table, room, cache_dtype)
    return ModelRunner(network, *room, cache_dtype)
