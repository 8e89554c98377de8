"""Grouped-query attention and the positions it rotates by, as plain values."""

from dataclasses import dataclass
from typing import Literal

from penstock.runtime.models.kinds.cache import Kind


@dataclass(frozen=True, slots=True)
class LinearScaling:
    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware: the base grows with the served context once that exceeds `original_context`."""

    factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """Per-frequency factors; the long ones apply when the served context exceeds `original_context`."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context: int
    attention_factor: float


RopeScaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first `dim` numbers of a head, halves paired (d, d + dim/2)."""

    dim: int
    theta: float = 10_000.0
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class GQA:
    """Grouped-query attention; multi-head and multi-query are its two ends."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope | None
    scale: float
    """Multiplies q.k before the softmax, usually head_dim ** -0.5."""
    window: int | None = None
    """Keys seen: a query at p sees p - window + 1 .. p; None sees all."""
    causal: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None
    """RMS norm of q and k before RoPE: over each head (Qwen3, Gemma 3) or over all heads at once (OLMo-2)."""
    logit_softcap: float | None = None
    sinks: bool = False
    """A learned logit per head that joins the softmax and carries no value (GPT-OSS)."""
    gated: bool = False
    """What is read is multiplied, number by number, by the sigmoid of a projection of x (Qwen3-Next)."""

    state_values = 0

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.kv_size if self.causal else 0

    @property
    def cache_shape(self) -> tuple[int, ...]:
        return self.num_kv_heads, self.head_dim

    @property
    def kind(self) -> Kind:
        return "full" if self.window is None else "window"

    @property
    def flops_per_pair(self) -> int:
        """Scoring a query against a key and weighing its value: a multiplication and an addition per number, each."""
        return 4 * self.q_size

    def num_parameters(self, hidden_size: int) -> int:
        qkv_rows = self.q_size + 2 * self.kv_size
        count = qkv_rows * hidden_size + hidden_size * self.q_size
        count += qkv_rows * self.qkv_bias + hidden_size * self.out_bias + self.num_heads * self.sinks
        count += self.q_size * (hidden_size + self.qkv_bias) * self.gated
        if self.qk_norm == "head":
            count += 2 * self.head_dim
        elif self.qk_norm == "full":
            count += self.q_size + self.kv_size
        return count
