"""A rank's own part of a model: read from its part of the files, joined to the others, made ready to run."""

from collections.abc import Callable

import torch

from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.choose import make_runner
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.eager.forward import EagerForward, RunnerParts, make_parts
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import Finish, check_all_used, fill_dummy, fill_model
from penstock.runtime.execution.native.cache import NativeCache
from penstock.runtime.execution.parallel.forward import SharedForward
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
        self,
        recipes: Recipes,
        checkpoint: Checkpoint,
        progress: Progress | None = None,
        packs: bool = False,
        finish: Finish | None = None,
    ) -> None:
        used = {name for recipe in recipes.values() for name in sources(recipe)}
        check_all_used(checkpoint.names, used, self.shard.whole)
        fill_model(self.model, shard_recipes(recipes, self.shard), checkpoint, self.device, progress, packs, finish)

    def make_up(self, finish: Finish | None = None) -> None:
        """Random numbers, for benchmarks."""
        fill_dummy(self.model, self.device, self.shard.place.rank, finish)

    def join(self, world: World) -> Decoder | StagedDecoder:
        join_shard(self.model, self.shard, world)
        self.model.eval()
        return StagedDecoder(self.model, world) if world.place.ranks.pipeline > 1 else self.model


def rank_runner(network: object, world: World, shape: RunnerShape, cache_dtype: torch.dtype | None) -> StepRunner:
    """Stages draw in the last of them; ranks that share a vocabulary lay no scores down; others run as a whole model does."""
    if isinstance(network, StagedDecoder) and world.device.type == "cuda":
        return make_recorded_stage(network, world, shape, cache_dtype)
    if isinstance(network, StagedDecoder) or (isinstance(network, NativePart) and world.place.ranks.pipeline > 1):
        parts = _parts(network, shape, cache_dtype)
        return StageRunner(parts, EagerForward(network, parts), world)
    if isinstance(network, NativePart):
        parts = _parts(network, shape, cache_dtype)
        return StepRunner(parts, SharedForward(network, network, parts))
    if isinstance(network, Decoder) and world.device.type != "cuda":
        table = network.embedding if network.output is None else network.output
        if isinstance(table, VocabularyScores):
            parts = _parts(network, shape, cache_dtype)
            return StepRunner(parts, SharedForward(network, table, parts))
    runner = make_runner(network, shape, cache_dtype)
    if isinstance(runner, CudaRunner):
        runner.join(world.stage)
    return runner


def _parts(network: Decoder | NativePart | StagedDecoder, shape: RunnerShape, dtype: torch.dtype | None) -> RunnerParts:
    """Of the rank's own layers and heads, the cache laid out as its steps write it."""
    size = shape.num_blocks, shape.block_size, dtype or network.cache_dtype
    is_native = isinstance(network, NativePart)
    cache = NativeCache(network.spec, *size) if is_native else KVCache(network.spec, *size, network.device)
    return make_parts(network.spec, shape, network.device, cache)
