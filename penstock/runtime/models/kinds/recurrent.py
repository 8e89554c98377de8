"""Parts of a layer that keep a state of a fixed size in place of keys and values."""

import math
from dataclasses import dataclass
from typing import Literal

from penstock.runtime.models.kinds.cache import Kind


class Recurrent:
    """What every part with a state answers where attention is asked: nothing is kept by token, and no pair is scored."""

    __slots__ = ()
    rope = None
    window = None
    causal = True
    kv_values_per_token = 0
    flops_per_pair = 0
    cache_shape: tuple[int, ...] = ()
    kind: Kind = "state"


class Convolved(Recurrent):
    """Parts that read their inputs through a short convolution. Its last inputs are kept beside what is added up."""

    __slots__ = ()

    width: int
    """Tokens that the convolution sees."""

    @property
    def conv_size(self) -> int:
        """Numbers of a token that pass the convolution."""
        raise NotImplementedError

    @property
    def sum_shape(self) -> tuple[int, ...]:
        """Of what is added up over all tokens."""
        raise NotImplementedError

    @property
    def state_values(self) -> int:
        return self.conv_size * (self.width - 1) + math.prod(self.sum_shape)


@dataclass(frozen=True, slots=True)
class ShortConv(Convolved):
    """out(c * conv(b * x)), with b, c and x of one projection: a convolution over the last few tokens (LFM2)."""

    size: int
    width: int
    bias: bool = False

    num_heads = 1
    sum_shape = (0,)

    @property
    def conv_size(self) -> int:
        return self.size

    @property
    def q_size(self) -> int:
        return self.size

    def num_parameters(self, hidden_size: int) -> int:
        count = 4 * self.size * hidden_size + self.size * self.width
        return count + (4 * self.size + hidden_size) * self.bias


@dataclass(frozen=True, slots=True)
class Mamba2(Convolved):
    """A state-space layer: each head keeps [head_dim, state_size] numbers that decay and are added to at every token.

    x -> gate, (values, keys, queries) through a short convolution, time steps
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    """Of heads that share keys (B) and queries (C)."""
    width: int
    conv_bias: bool = True
    bias: bool = False
    min_step: float = 0.0
    max_step: float = float("inf")
    """Between which time steps are kept."""
    out_bias: bool = False
    norm: Literal["after gate", "before gate"] | None = "after gate"
    """Where what was read is normed, in `norm_groups` parts."""
    norm_groups: int = 1

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        return self.inner + 2 * self.num_groups * self.state_size

    @property
    def q_size(self) -> int:
        return self.inner

    @property
    def sum_shape(self) -> tuple[int, ...]:
        return self.num_heads, self.head_dim, self.state_size

    def num_parameters(self, hidden_size: int) -> int:
        count = (self.inner + self.conv_size + self.num_heads) * (hidden_size + self.bias)
        count += (
            self.conv_size * (self.width + self.conv_bias) + 3 * self.num_heads + self.inner * (self.norm is not None)
        )
        return count + (self.inner + self.out_bias) * hidden_size


@dataclass(frozen=True, slots=True)
class GatedDelta(Convolved):
    """Linear attention that corrects itself: each head keeps [key_dim, value_dim] numbers, which decay at every token and
    then are moved, by a strength of its own, towards answering the token's key with its value (Qwen3-Next).

    x -> (queries, keys, values) through a short convolution, gate, strengths, time steps
    """

    num_heads: int
    """Of values; as many of them share a key and a query as there are fewer of those."""
    num_key_heads: int
    key_dim: int
    value_dim: int
    width: int

    @property
    def inner(self) -> int:
        return self.num_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        return self.inner + 2 * self.num_key_heads * self.key_dim

    @property
    def q_size(self) -> int:
        return self.inner

    @property
    def sum_shape(self) -> tuple[int, ...]:
        return self.num_heads, self.key_dim, self.value_dim

    def num_parameters(self, hidden_size: int) -> int:
        count = (self.conv_size + self.inner + 2 * self.num_heads) * hidden_size
        return count + self.conv_size * self.width + 2 * self.num_heads + self.value_dim + self.inner * hidden_size
