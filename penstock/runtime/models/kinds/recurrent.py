"""Parts of a layer that keep a state of a fixed size in place of keys and values."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ShortConv(Recurrent):
    """out(c * conv(b * x)), with b, c and x of one projection: a convolution over the last few tokens (LFM2)."""

    size: int
    width: int
    """Tokens that the convolution sees."""
    bias: bool = False

    @property
    def num_heads(self) -> int:
        return 1

    @property
    def q_size(self) -> int:
        return self.size

    @property
    def state_values(self) -> int:
        return self.size * (self.width - 1)

    def num_parameters(self, hidden_size: int) -> int:
        count = 4 * self.size * hidden_size + self.size * self.width
        return count + (4 * self.size + hidden_size) * self.bias


@dataclass(frozen=True, slots=True)
class Mamba2(Recurrent):
    """A state-space layer: each head keeps [head_dim, state_size] numbers that decay and are added to at every token.

    x -> gate, (values, keys, queries) through a short convolution, time steps
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    """Of heads that share keys (B) and queries (C)."""
    width: int
    """Tokens that the convolution sees."""
    conv_bias: bool = True
    bias: bool = False
    min_step: float = 0.0
    max_step: float = float("inf")
    """Between which time steps are kept."""

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
    def state_values(self) -> int:
        return self.conv_size * (self.width - 1) + self.inner * self.state_size

    def num_parameters(self, hidden_size: int) -> int:
        count = (self.inner + self.conv_size + self.num_heads) * (hidden_size + self.bias)
        count += self.conv_size * (self.width + self.conv_bias) + 3 * self.num_heads + self.inner
        return count + (self.inner + self.bias) * hidden_size


@dataclass(frozen=True, slots=True)
class GatedDelta(Recurrent):
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
    """Tokens that the convolution sees."""

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
    def state_values(self) -> int:
        return self.conv_size * (self.width - 1) + self.num_heads * self.key_dim * self.value_dim

    def num_parameters(self, hidden_size: int) -> int:
        count = (self.conv_size + self.inner + 2 * self.num_heads) * hidden_size
        return count + self.conv_size * self.width + 2 * self.num_heads + self.value_dim + self.inner * hidden_size
