"""A rank's own part of a model: read from its part of the files, joined to the others, made ready to run."""

from collections.abc import Callable

import torch

from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.choose import make_runner
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.eager.runner import ModelRunner, StepRunner
from penstock.runtime.execution.load.parameters import check_all_used, fill_dummy, fill_model
from penstock.runtime.execution.parallel.forward import SharedRunner, make_cache
from penstock.runtime.execution.parallel.native import NativePart
from penstock.runtime.execution.parallel.recorded import make_recorded_stage
from penstock.runtime.execution.parallel.runner import StageRunner
from penstock.runtime.execution.parallel.split import build_shard, join_shard
from penstock.runtime.execution.parallel.stage import StagedDecoder
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.parallel import VocabularyScores
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.sharding import ModelShard, shard_model, shard_recipes
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes, sources

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


def rank_runner(network: object, world: World, shape: RunnerShape, cache_dtype: torch.dtype | None) -> StepRunner:
    """Stages draw in the last of them; ranks that share a vocabulary lay no scores down; others run as a whole model does."""
    if isinstance(network, StagedDecoder) and world.device.type == "cuda":
        return StageRunner(make_recorded_stage(network, world, shape, cache_dtype), world)
    if isinstance(network, StagedDecoder) or (isinstance(network, NativePart) and world.place.ranks.pipeline > 1):
        cache = make_cache(network, shape, cache_dtype)
        parts = ModelRunner(network, shape, cache_dtype, cache)  # type: ignore[arg-type]  # it stands where a decoder stands
        return StageRunner(parts, world)
    if isinstance(network, NativePart):
        return SharedRunner(network, network, shape, cache_dtype)
    if isinstance(network, Decoder) and world.device.type != "cuda":
        table = network.embedding if network.output is None else network.output
        if isinstance(table, VocabularyScores):
            return SharedRunner(network, table, shape, cache_dtype)
    runner = make_runner(network, shape, cache_dtype)
    if isinstance(runner, CudaRunner):
        runner.join(world.stage)
    return runner
