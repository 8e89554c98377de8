"""What was found at start: how much of the model and its cache fits. The engine and the simulator both size here."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from penstock.amounts import format_bytes
from penstock.config import EngineConfig, bytes_of
from penstock.errors import ConfigError
from penstock.runtime.core.kinds.groups import PLAIN, BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits, StepSize
from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC, MixedSteps, dynamic
from penstock.runtime.core.queue.order import ORDERS, Lanes
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.models.spec import ModelSpec

S = TypeVar("S", bound=Scheduler)
GIB = 2**30
MAX_BATCH_TOKENS = 2048
"""Most tokens of a step where nothing is asked and nothing is known of the device: enough to keep any busy."""
MIN_BATCH_TOKENS = 128
SERVED_STEP_S, OFFLINE_STEP_S, CPU_STEP_S = 0.12, 0.25, 1.0
"""How long a step may take, unless asked: on a GPU with somebody reading along and with nobody, and on a CPU."""
SHARED_CPU_STEP_S, MIN_SHARED_TOKENS = 0.04, 32
MIN_TARGET_TOKENS = 16
SHARED_PART = 4
"""Steps that several tenants share have a fourth of the tokens of others, but a place for everybody who generates."""
MOST_STEP_TOKENS = {"gpu": 8192, "cpu": 1024}
"""Longer steps than these are no faster a token, and each token of a step takes memory."""


STATE_VALUE_BYTES = 4
"""States are kept in float32: they are added to at every token, and an error would stay."""
STATES_PER_ROW = 4
"""Of a running sequence: the one it writes, its last checkpoint, and prompts that others begin with."""


class Pace(NamedTuple):
    """What decides how many tokens of a prompt make a step, where nothing is asked.

    Those who generate wait for the prompts computed beside them: a step may take so long and no longer.
    """

    flops: float
    """What the device's products reach a second."""
    step_s: float
    most_tokens: int
    is_mixed: bool = False
    """Steps are shorter while answers go on."""


def pace_of(kind: Literal["gpu", "cpu"], flops: float, gpu_step_s: float = SERVED_STEP_S) -> Pace:
    is_gpu = kind == "gpu"
    is_mixed = is_gpu and gpu_step_s == SERVED_STEP_S
    return Pace(flops, gpu_step_s if is_gpu else CPU_STEP_S, MOST_STEP_TOKENS[kind], is_mixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a device offers and what the model takes of it before the cache."""

    free_bytes: int
    weight_bytes: int
    workspace_bytes: int = 0
    bytes_per_kv_value: float = 2.0
    enough_kv_bytes: int | None = None
    """More cache than this is taken only if a number of blocks is asked for: a laptop has other uses for its memory."""
    kept_kv_bytes: int | None = None
    """More than this is filled only for sequences that run, unless a number of blocks is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The outcome of sizing an engine; never written back into a config."""

    num_blocks: int
    block_size: int
    block_bytes: int
    max_context: int
    weight_bytes: int
    workspace_bytes: int
    free_bytes: int
    num_kept_blocks: int | None = None
    """Blocks that may be filled for the sake of prefixes alone; None for all."""
    max_batch_tokens: int = MAX_BATCH_TOKENS
    """Most tokens of a step, unless asked for."""
    groups: CacheGroups = PLAIN
    """Kinds of cache that a sequence holds blocks of."""
    state_bytes: int = 0
    """Of one state, where there are some."""
    is_mixed: bool = False
    """Steps are shorter while answers go on."""

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes + self.groups.num_states * self.state_bytes

    @property
    def num_cached_tokens(self) -> int:
        """Tokens the whole cache holds, in sequences of the longest context: of short ones a window keeps all."""
        if self.groups.is_plain:
            return self.num_blocks * self.block_size
        return self.num_blocks * self.max_context // max(self.ids_of(self.max_context), 1)

    def ids_of(self, length: int) -> int:
        """Block ids that a sequence of this length holds while it generates."""
        return self.groups.most_ids(length, self.block_size, 0)

    def num_sequences(self, length: float) -> int:
        """How many sequences of this length the cache holds at a time."""
        if self.groups.is_plain:
            return int(self.num_cached_tokens / length)
        fitting = self.num_blocks // max(self.ids_of(int(length)), 1)
        return min(fitting, self.groups.num_states or fitting)


def size_engine(
    config: EngineConfig, spec: ModelSpec, memory: Memory, pace: Pace | None = None, *, frees: bool = True
) -> Sizing:
    """Give the cache what weights and workspace leave of the allowed memory, or say what would make it fit.

    Without `frees` windows are kept whole: who computes the model has one block table a sequence.
    """
    max_context = config.model.max_context or spec.max_context
    if max_context > spec.max_context:
        raise ConfigError(
            f"--max-context is {max_context:,} but the model was made for {spec.max_context:,} tokens; choose at most that"
        )
    block_size = config.cache.block_size
    groups = _groups(spec, frees)
    block_bytes = spec.kv_bytes_per_token(memory.bytes_per_kv_value) * block_size
    if not groups.is_plain:
        block_bytes = round(spec.cache_layout(frees=frees).page_values * memory.bytes_per_kv_value) * block_size
    block_bytes = max(block_bytes, 1)  # a model of states alone: blocks name prefixes and keep nothing
    allowed = int(memory.free_bytes * config.cache.memory_fraction)
    left = allowed - memory.weight_bytes - memory.workspace_bytes
    state_bytes = STATE_VALUE_BYTES * sum(group.values_per_sequence for group in spec.cache_groups)
    if state_bytes:
        num_states = _num_states(config, left, memory.enough_kv_bytes, state_bytes)
        groups, left = groups._replace(num_states=num_states), left - num_states * state_bytes
    num_fitting = max(left, 0) // block_bytes
    num_blocks = config.cache.num_blocks or num_fitting
    if config.cache.num_blocks is None and config.cache.kv_memory is not None:
        num_blocks = min(num_fitting, max(bytes_of("--kv-memory", config.cache.kv_memory) // block_bytes, 1))
    elif config.cache.num_blocks is None and memory.enough_kv_bytes is not None:
        num_blocks = min(num_fitting, -(-memory.enough_kv_bytes // block_bytes))
    if num_blocks > num_fitting or not num_fitting:
        raise ConfigError(_does_not_fit(config, memory, block_bytes, num_fitting))
    num_kept = None
    if config.cache.num_blocks is None and memory.kept_kv_bytes is not None:
        num_kept = -(-memory.kept_kv_bytes // block_bytes)
    max_tokens = batch_tokens(config, spec, pace)
    num_useful = config.scheduler.max_sequences * groups.most_ids(max_context, block_size, max_tokens)
    return Sizing(
        num_blocks=min(num_blocks, num_useful),
        block_size=block_size,
        block_bytes=block_bytes,
        max_context=max_context,
        weight_bytes=memory.weight_bytes,
        workspace_bytes=memory.workspace_bytes,
        free_bytes=memory.free_bytes,
        num_kept_blocks=num_kept,
        max_batch_tokens=max_tokens,
        groups=groups,
        state_bytes=state_bytes,
        is_mixed=pace is not None and pace.is_mixed,
    )


def _groups(spec: ModelSpec, frees: bool) -> CacheGroups:
    first, *others = [BlockGroup(window, width) for window, width in spec.cache_layout(frees=frees).groups]
    return CacheGroups(first, tuple(others))


def _num_states(config: EngineConfig, left: int, enough: int | None, state_bytes: int) -> int:
    """One for each sequence and some for checkpoints, in at most half of the cache's memory."""
    left = left if enough is None else min(left, 2 * enough)
    return max(min(STATES_PER_ROW * config.scheduler.max_sequences, left // 2 // state_bytes), 1)


def batch_tokens(config: EngineConfig, spec: ModelSpec, pace: Pace | None = None) -> int:
    """Most tokens of a step: as asked, else what the device computes in time, else the usual number."""
    asked = config.scheduler
    if asked.max_batch_tokens is not None:
        return asked.max_batch_tokens
    return max(MAX_BATCH_TOKENS if pace is None else paced_tokens(spec, pace), asked.max_sequences)


def paced_tokens(spec: ModelSpec, pace: Pace) -> int:
    """Tokens of a prompt computed in time, down to a power of two: measuring again finds the same."""
    # Scores are of the last token alone.
    flops_per_token = 2 * (spec.num_active_parameters - spec.vocab_size * spec.hidden_size)
    count = int(min(max(pace.step_s * pace.flops / flops_per_token, MIN_BATCH_TOKENS), pace.most_tokens))
    return 1 << (count.bit_length() - 1)


def step_size(config: EngineConfig, device: str) -> StepSize | None:
    """On a CPU, and wherever a step has a target. Workspace elsewhere was sized at start: steps only shrink there."""
    asked, target_ms = config.scheduler.max_batch_tokens, config.scheduler.tpot_target_ms
    is_cpu = device == "cpu"
    if target_ms is None and not is_cpu:
        return None
    least = max(MIN_BATCH_TOKENS, config.scheduler.max_sequences)
    most = asked or MOST_STEP_TOKENS["cpu" if is_cpu else "gpu"]
    if target_ms is None and asked is not None:
        least = asked
    is_target = is_cpu and target_ms is not None
    if is_target:
        least = MIN_TARGET_TOKENS
    # Sizes change where steps take more than double, so half of a target is what they aim at.
    step_s = CPU_STEP_S if target_ms is None else target_ms / 2000
    shared = None
    if is_cpu:
        shared_s = min(step_s, SHARED_CPU_STEP_S)
        shared = StepSize(step_s=shared_s, least=MIN_SHARED_TOKENS, most=max(least, most), counts_decodes=True)
    return StepSize(
        step_s=step_s,
        least=min(least, most),
        most=max(least, most),
        is_bounded_by_start=not is_cpu,
        is_target=is_target,
        shared=shared,
    )


def make_scheduler(config: EngineConfig, sizing: Sizing) -> Scheduler:
    """The scheduler both clocks drive."""
    return scheduler_of(Scheduler, config, sizing)


def scheduler_of(kind: type[S], config: EngineConfig, sizing: Sizing) -> S:
    """The same of another kind: the simulator has one of its own."""
    asked = config.scheduler
    limits = Limits(
        num_blocks=sizing.num_blocks,
        block_size=sizing.block_size,
        max_context=sizing.max_context,
        max_batch_tokens=asked.max_batch_tokens or max(sizing.max_batch_tokens, asked.max_sequences),
        max_sequences=asked.max_sequences,
        max_waiting=asked.max_waiting,
        max_waiting_tokens=asked.max_waiting_tokens,
        prefix_caching=config.cache.prefix_caching,
        num_kept_blocks=sizing.num_kept_blocks,
        groups=sizing.groups,
    )
    most = limits.max_batch_tokens
    limits = limits._replace(shared_tokens=max(most // SHARED_PART, min(asked.max_sequences, most)))
    batching = {"continuous": CONTINUOUS, "static": STATIC, "dynamic": dynamic(asked.gather_s)}[asked.batching]
    order = ORDERS["first-come" if asked.order == "auto" else asked.order]()
    return kind(limits, Lanes(order), batching, MixedSteps() if sizing.is_mixed else None)


def _does_not_fit(config: EngineConfig, memory: Memory, block_bytes: int, num_fitting: int) -> str:
    ledger = (
        f"free {format_bytes(memory.free_bytes)} x --memory-fraction {config.cache.memory_fraction:g}"
        f" - weights {format_bytes(memory.weight_bytes)} - workspace {format_bytes(memory.workspace_bytes)}"
    )
    if not num_fitting:
        return f"no memory is left for the KV cache: {ledger}; use a smaller model, a smaller dtype or more memory"
    return (
        f"--num-blocks {config.cache.num_blocks:,} needs {format_bytes((config.cache.num_blocks or 0) * block_bytes)} but only "
        f"{num_fitting:,} blocks fit: {ledger}; lower --num-blocks"
    )
