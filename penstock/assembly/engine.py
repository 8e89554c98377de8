"""Puts an engine together: files, weights on a device, sizing, scheduler, runner, loop.

A composition root beside the command line: it may know every layer, and nothing but the roots knows it.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from penstock.assembly.drafting import (
    Drafting,
    check_files,
    draft_bytes,
    draft_config,
    make_drafter,
    make_head_drafter,
)
from penstock.assembly.kernels import compiled_meanwhile
from penstock.assembly.parallel.ranks import (
    RankGroup,
    RankSetup,
    agree_with_first,
    check_machine,
    place_on_node,
    ranks_of,
)
from penstock.assembly.peers import PeerSettings, make_peers
from penstock.assembly.tiers import format_of, make_tiers
from penstock.config import HEADS, EngineConfig, bound_of
from penstock.errors import ConfigError
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.draft.drafters.table import make_speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.grammar_state import GrammarState
from penstock.runtime.execution.adapters.adapt import adapt
from penstock.runtime.execution.adapters.prepare import rounded_rank
from penstock.runtime.execution.ceilings import gpu_product_rate, product_rate
from penstock.runtime.execution.choose import make_runner
from penstock.runtime.execution.device import CpuDevice, Device, open_device, settle
from penstock.runtime.execution.kv_cache import CACHE_DTYPES, bytes_per_kv_value
from penstock.runtime.execution.load.parameters import Finish, dummy_model, load_model
from penstock.runtime.execution.load.quantize import quantize_fp8
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.load import load_native
from penstock.runtime.execution.parallel.adapters import FollowingAdapters, LeadingAdapters
from penstock.runtime.execution.parallel.native import NativePart, load_native_part
from penstock.runtime.execution.parallel.part import ModelPart, rank_runner
from penstock.runtime.execution.parallel.runner import LeadingRunner, follow
from penstock.runtime.execution.parallel.stage import StagedDecoder
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.files import ModelFiles, dummy_spec, open_files
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.models.adapters import adapter_bytes
from penstock.runtime.models.kinds.forgetting import bounded
from penstock.runtime.models.ranks import RankPlace
from penstock.runtime.models.sharding import ModelShard, shard_model
from penstock.runtime.models.spec import GQA, MLA, ModelSpec
from penstock.runtime.ops.quantized.packed import TILE
from penstock.runtime.sizing import (
    GIB,
    SERVED_STEP_S,
    Memory,
    Pace,
    Sizing,
    batch_tokens,
    make_scheduler,
    pace_of,
    size_engine,
    step_size,
)
from penstock.tools.cost.memory import workspace_bytes
from penstock.tools.measure.tiles import read_tiles, tiles_path

KEPT_KV_BYTES = GIB // 8
"""On a CPU, where the cache takes memory as it is written: what prefixes may take of it beside those who run."""
MOST_FLOATS = 0.5
"""Share of a GPU's memory that weights may take as floats before they are kept packed."""

LEAST_GPU_HEAD_DIM = 16
ADAPTER_THREADS = 2
"""Threads that read adapters while steps go on."""
GRAMMAR_THREADS = 2
"""A grammar that takes long to compile keeps one of them; the next goes on beside it."""

LOGGER = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Told the stage, and how much of how much is done."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on a device, and the files they came from unless they are made up."""

    network: Decoder | Encoder | NativeDecoder | NativePart | StagedDecoder
    device: Device
    files: ModelFiles | None
    group: RankGroup | None = None
    """The other ranks, where this is the first of several."""
    shard: ModelShard | None = None
    """This rank's part, where there are several."""

    @property
    def spec(self) -> ModelSpec:
        return self.network.spec

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.network.parameters())

    def weights_digest(self) -> str:
        """Made-up weights are named by their shape, which is all that decides them."""
        return "made up" if self.files is None else self.files.weights_digest


def load(
    config: EngineConfig, cache: Path | None = None, progress: Progress | None = None, *, warms_up: bool = False
) -> LoadedModel:
    """Find the model, fetching it if need be, and put its weights on the device, or its part of them.

    One that warms up has the kernels of its steps compiled meanwhile.
    """
    if ranks_of(config).num_ranks > 1:
        if config.cache.long_context != "full":
            raise ConfigError("--long-context is for a model in one process; leave out --tensor and --pipeline")
        return _load_first(config, cache, progress)
    device = open_device(config.model.device)
    dtype = device.dtype(config.model.dtype)
    spec = dummy_spec(config.model.model)
    if spec is not None:
        spec = _served_spec(config, spec)
        _check_invariance(config)
        with compiled_meanwhile(config, spec, device, warms_up):
            network = dummy_model(spec, device.torch_device, dtype, finish=_finish(config, spec))
        return LoadedModel(network, device, None)
    files = open_files(config.model.model, cache, progress)
    spec = _served_spec(config, files.spec)
    native = _load_native(config, device, files) if spec is files.spec else None
    if native is not None:
        return LoadedModel(native, device, files)
    _check_invariance(config)
    reported = None if progress is None else lambda done, total: progress("load", done, total)
    packs = _packs(config, device, spec)
    finish = _finish(config, spec)
    arguments = spec, files.model.recipes, files.checkpoint, device.torch_device, dtype, reported, packs, finish
    with compiled_meanwhile(config, spec, device, warms_up and not packs):
        network = load_model(*arguments)
    return LoadedModel(network, device, files)


def _served_spec(config: EngineConfig, spec: ModelSpec) -> ModelSpec:
    """The model as it is served: as it is, or with layers that forget."""
    if config.cache.kv != "auto" and any(isinstance(layer.attention, MLA) for layer in spec.layers):
        raise ConfigError(
            f"--kv {config.cache.kv} holds keys and values; latents (MLA) are kept in 16 bits: leave it out"
        )
    bound = bound_of(config.cache.long_context)
    if bound is None:
        return spec
    LOGGER.warning("--long-context %s is lossy: answers to long texts are others", config.cache.long_context)
    return bounded(spec, *bound, context=config.model.max_context or 0)


def _load_first(config: EngineConfig, cache: Path | None, progress: Progress | None) -> LoadedModel:
    """The first of several ranks: nothing is loaded anywhere before it is known that the model can be cut so."""
    ranks, device = ranks_of(config), open_device(config.model.device)
    _check_invariance(config)
    spec = dummy_spec(config.model.model)
    files = None if spec is not None else open_files(config.model.model, cache, progress)
    ranks.check(spec or files.spec)  # type: ignore[union-attr]
    check_machine(config, device)
    group = RankGroup(config, ranks)
    try:
        group.await_nodes()
        device = settle(device, *place_on_node(config, 0), shares_gpu=config.parallel.share_gpu)
        reported = None if progress is None else lambda done, total: progress("load", done, total)
        part = _load_part(config, device, files, ranks.place(0), reported)
        return LoadedModel(part.join(group.join(device)), device, files, group, part.shard)
    except BaseException:
        group.close()
        raise


def _load_part(
    config: EngineConfig,
    device: Device,
    files: ModelFiles | None,
    place: RankPlace,
    reported: Callable[[int, int], None] | None = None,
) -> ModelPart | NativePart:
    spec = dummy_spec(config.model.model) or files.spec  # type: ignore[union-attr]
    if files is not None and isinstance(device, CpuDevice) and _can_be_native(config):
        shard = shard_model(spec, place.ranks, place.rank)
        native = load_native_part(shard, files.model.recipes, files.checkpoint, device.num_threads)
        if native is not None:
            return native
    part = ModelPart(spec, place.ranks, place.rank, device.torch_device, device.dtype(config.model.dtype))
    finish = _finish(config, spec)
    if files is None:
        part.make_up(finish)
    else:
        part.load(files.model.recipes, files.checkpoint, reported, _packs(config, device, part.shard.spec), finish)
    return part


def run_rank(setup: RankSetup) -> None:
    """The life of a rank that is not the first: it loads its part, joins, and computes what is announced."""
    config, place = setup.config, ranks_of(setup.config).place(setup.rank)
    device = open_device(config.model.device)
    device = settle(device, *place_on_node(config, place.rank), shares_gpu=config.parallel.share_gpu)
    if device.torch_device.type == "cuda":
        _use_tiles(device.name)
    files = None if dummy_spec(config.model.model) is not None else open_files(config.model.model)
    part = _load_part(config, device, files, place)
    world = World(place, setup.rendezvous, device.torch_device)
    loaded = LoadedModel(part.join(world), device, files)
    sizing = agree_with_first(world, _size_own(config, loaded, SERVED_STEP_S))
    shape = _shape(config, sizing)
    runner = rank_runner(loaded.network, world, shape, CACHE_DTYPES[config.cache.kv])
    slots = adapt(runner, loaded.network, config.adapter, shape.max_sequences, part.shard)
    follow(runner, world, None if slots is None else FollowingAdapters(slots, world))


def size(config: EngineConfig, loaded: LoadedModel, step_s: float = SERVED_STEP_S) -> Sizing:
    """How much cache the device holds beside the weights it holds already; how long steps are, on a GPU for `step_s`.

    Of several ranks, what all have room for.
    """
    own = _size_own(config, loaded, step_s)
    return own if loaded.group is None else loaded.group.agree(own)


def _size_own(config: EngineConfig, loaded: LoadedModel, step_s: float) -> Sizing:
    spec = loaded.spec
    _, num_here = place_on_node(config, 0)
    if num_here > 1 and (isinstance(loaded.device, CpuDevice) or config.parallel.share_gpu):  # they share its memory
        share = config.cache.memory_fraction / num_here
        config = replace(config, cache=replace(config.cache, memory_fraction=share))
    device, pace = loaded.device, _pace(loaded.device, config, step_s)
    bytes_per_value = bytes_per_kv_value(spec, CACHE_DTYPES[config.cache.kv] or loaded.network.cache_dtype)
    draft = config.speculation.draft_model
    beside_bytes = 0 if draft is None else draft_bytes(config, spec, open_files(draft))
    enough_kv_bytes: int | None = None
    kept_kv_bytes: int | None = None
    if isinstance(device, CpuDevice):  # a gibibyte, or one whole context if that is more
        max_context = config.model.max_context or spec.max_context
        enough_kv_bytes = max(GIB, max_context * spec.kv_bytes_per_token(bytes_per_value))
        kept_kv_bytes = KEPT_KV_BYTES
    else:  # as planner and simulator count it
        num_tokens = batch_tokens(config, spec, pace)
        beside_bytes += workspace_bytes(spec, num_tokens, config.scheduler.max_sequences)
        beside_bytes += _adapter_bytes(config, spec)
    memory = Memory(
        free_bytes=device.free_bytes + loaded.weight_bytes,
        weight_bytes=loaded.weight_bytes,
        workspace_bytes=beside_bytes,
        bytes_per_kv_value=bytes_per_value,
        enough_kv_bytes=enough_kv_bytes,
        kept_kv_bytes=kept_kv_bytes,
    )
    return size_engine(config, spec, memory, pace, frees=_frees(config, loaded))


def _use_tiles(device: str) -> None:
    """The tiles of this GPU: its table, and what `penstock tune --kernels` chose, if it has run here."""
    from penstock.runtime.ops.triton.host.tile_table import use_device  # triton: only where a GPU is

    use_device(device, read_tiles(tiles_path(device)))


def make_engine(
    config: EngineConfig,
    loaded: LoadedModel,
    sizing: Sizing,
    on_step: Callable[[StepTime], None] | None = None,
    *,
    warms_up: bool = False,
    peers: PeerSettings | None = None,
) -> Engine:
    """An engine over a loaded model, on the monotonic clock; `on_step` receives what each step was and how long it took.

    One that rehearses uses the time until there is something to compute.
    """
    if isinstance(loaded.network, Encoder):
        raise ConfigError(f"{config.model.model} makes vectors and generates no text; use it for embeddings")
    if loaded.device.torch_device.type == "cuda":
        check_heads(loaded.spec)
        _use_tiles(loaded.device.name)
    shape = _shape(config, sizing)
    cache_dtype = CACHE_DTYPES[config.cache.kv]
    scheduler = make_scheduler(config, sizing)
    drafting = _drafting(config, loaded, sizing)
    speculator = make_speculator(_drafter(config, loaded), config.speculation.draft_tokens, drafting.drafter)
    make = partial(
        Engine,
        scheduler,
        clock=time.monotonic,
        on_step=on_step,
        speculator=speculator,
        grammar_state=_grammar_state(loaded, warms_up),
    )
    if config.adapter.are_served:
        readers = ThreadPoolExecutor(ADAPTER_THREADS, thread_name_prefix="adapter") if warms_up else None
        make = partial(make, readers=readers)
    if loaded.group is not None:
        world = loaded.group.world
        own = rank_runner(loaded.network, world, shape, cache_dtype)
        slots = adapt(own, loaded.network, config.adapter, shape.max_sequences, loaded.shard)
        leading = LeadingRunner(own, world, loaded.spec.vocab_size)
        make_tiers(config, loaded.spec, str, scheduler, leading)
        make_peers(peers, config, lambda _: b"", scheduler, leading)
        return make(
            runner=leading, depth=leading.depth, adapters=None if slots is None else LeadingAdapters(slots, world)
        )
    runner = make_runner(loaded.network, shape, cache_dtype)
    runner.states = drafting.states
    adapters = adapt(runner, loaded.network, config.adapter, shape.max_sequences)
    make = partial(make, tiers=make_tiers(config, loaded.spec, loaded.weights_digest, scheduler, runner))
    named = partial(format_of, config, loaded.spec, loaded.weights_digest)
    make = partial(make, peers=make_peers(peers, config, named, scheduler, runner))
    if warms_up:
        runner.warm_up(scheduler.limits.max_batch_tokens)
    return make(
        runner=runner,
        depth=runner.depth,
        step_size=step_size(config, loaded.device.torch_device.type),
        adapters=adapters,
    )


def _frees(config: EngineConfig, loaded: LoadedModel) -> bool:
    """Windows give blocks back where one process computes the model, unless blocks are kept beyond the device too."""
    keeps = config.cache.kv_host is not None or config.cache.kv_disk is not None
    return config.parallel.tensor * config.parallel.pipeline == 1 and not keeps


def check_heads(spec: ModelSpec) -> None:
    """Refuse a model whose heads the kernels of a GPU cannot multiply, before every request fails for it."""
    heads = [layer.attention.head_dim for layer in spec.layers if isinstance(layer.attention, GQA)]
    narrowest = min(heads, default=LEAST_GPU_HEAD_DIM)
    if narrowest < LEAST_GPU_HEAD_DIM:
        raise ConfigError(
            f"attention heads of {narrowest} numbers are too narrow for a GPU's matrix units, which take "
            f"{LEAST_GPU_HEAD_DIM} or more; choose --device cpu"
        )


def _adapter_bytes(config: EngineConfig, spec: ModelSpec) -> int:
    """Of all slots of a GPU, filled with the largest adapters, and of one in float32 on its way into a slot. On a CPU they take
    memory as they come."""
    if not config.adapter.are_served:
        return 0
    return (config.adapter.max_adapters + 2) * adapter_bytes(spec, rounded_rank(config.adapter.max_adapter_rank))


def _drafter(config: EngineConfig, loaded: LoadedModel) -> str | None:
    """Who guesses. By itself speculation is on where it was measured never to lose: native steps of one process."""
    is_native = isinstance(loaded.network, NativeDecoder) and loaded.group is None
    return config.speculation.drafter or ("auto" if is_native else None)


def _drafting(config: EngineConfig, loaded: LoadedModel, sizing: Sizing) -> Drafting:
    kind, name = config.speculation.drafter, config.speculation.draft_model
    if kind in (*HEADS, "mtp") and loaded.group is not None:
        raise ConfigError(f"--speculate {kind} guesses for a model in one process; leave out --tensor and --pipeline")
    if kind in (*HEADS, "mtp"):
        return make_head_drafter(loaded.network, config, loaded.files, loaded.device.free_bytes)
    if name is None:
        return Drafting()
    check_files(loaded.files, open_files(name), loaded.device.free_bytes)
    return Drafting(make_drafter(load(draft_config(config, name)).network, config, sizing, loaded.spec.vocab_size))


def _grammar_state(loaded: LoadedModel, serves: bool) -> GrammarState | None:
    """Grammars in the words of the model. One that serves compiles beside the loop, and makes its vocabulary ready now."""
    files, vocab_size = loaded.files, loaded.spec.vocab_size
    try:
        from penstock.runtime.text.grammar.compiler import GrammarCompiler
        from penstock.runtime.text.grammar.vocabulary import whole_vocabulary
        from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer
    except ModuleNotFoundError:  # offline without llguidance: nothing can be held to a grammar
        return None
    grammars = GrammarCompiler(
        lambda: whole_vocabulary(byte_tokenizer(vocab_size) if files is None else files.tokenizer, vocab_size)
    )
    if not serves:
        return GrammarState(grammars, time.monotonic)
    executor = ThreadPoolExecutor(GRAMMAR_THREADS, thread_name_prefix="grammar")
    executor.submit(grammars.warm_up)
    return GrammarState(grammars, time.monotonic, executor)


def _shape(config: EngineConfig, sizing: Sizing) -> RunnerShape:
    num_rows, groups = config.scheduler.max_sequences, sizing.groups
    frees = not groups._replace(num_states=0).is_plain
    return RunnerShape(
        sizing.num_blocks, sizing.block_size, num_rows, sizing.max_context, frees, num_states=groups.num_states
    )


def _load_native(config: EngineConfig, device: Device, files: ModelFiles) -> NativeDecoder | None:
    """On a CPU, unless a number type was asked for: packed weights and native steps where model and machine allow."""
    if not isinstance(device, CpuDevice) or not _can_be_native(config):
        return None
    is_invariant = config.model.invariant
    return load_native(
        files.spec,
        files.model.recipes,
        files.checkpoint,
        device.num_threads,
        is_invariant,
        uses_tiles=not (
            is_invariant and config.cache.kv == "int8"
        ),  # tiles round weights by what all rows beside them see
    )


def _can_be_native(config: EngineConfig) -> bool:
    can_cache = config.cache.kv in ("auto", "int8") and config.cache.block_size % TILE == 0
    return _is_plain(config) and can_cache


def _check_invariance(config: EngineConfig) -> None:
    if config.model.invariant:
        raise ConfigError(
            "--invariant is kept by native steps of one process alone: no ranks, a quantized model of a plain architecture, "
            f"on a CPU, with the library built, blocks of a multiple of {TILE}, neither --dtype nor --weights given; "
            "change that or leave it out"
        )


def _is_plain(config: EngineConfig) -> bool:
    """Weights may be kept as the file has them."""
    return config.model.dtype == "auto" and config.model.weights in ("auto", "packed")


def _packs(config: EngineConfig, device: Device, spec: ModelSpec) -> bool:
    """On a GPU, matrices of few bits save memory and are faster for one sequence, but slower for many at once."""
    if device.torch_device.type != "cuda" or not _is_plain(config):
        return False
    return config.model.weights == "packed" or 2 * spec.num_parameters > device.free_bytes * MOST_FLOATS


def _finish(config: EngineConfig, spec: ModelSpec) -> Finish | None:
    """What is done to each layer once its numbers are there."""
    if config.model.weights != "fp8":
        return None
    if not spec.generates:
        raise ConfigError("--weights fp8 is for models that generate; leave it out for one that makes vectors")
    return quantize_fp8


def _pace(device: Device, config: EngineConfig, step_s: float) -> Pace | None:
    """What a quick look at the device's products gives, where the length of steps is ours to choose."""
    if config.scheduler.max_batch_tokens is not None:
        return None
    if isinstance(device, CpuDevice):
        return pace_of("cpu", product_rate(device.num_threads))
    return pace_of("gpu", gpu_product_rate(device.torch_device), step_s)
