"""A layer of two mixers: attention and a state-space layer read the same, and what they give is added (Falcon-H1)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from penstock.runtime.models.kinds.attention import GQA, Rope
from penstock.runtime.models.kinds.cache import Kind
from penstock.runtime.models.kinds.recurrent import Mamba2


class Multipliers(NamedTuple):
    """By which a checkpoint's matrices are multiplied as they are read."""

    attention_in: float = 1.0
    key: float = 1.0
    attention_out: float = 1.0
    mamba_in: float = 1.0
    mamba_parts: tuple[float, ...] = (1.0,) * 5
    """Of gate, values, keys, queries and time steps."""
    mamba_out: float = 1.0
    gate: float = 1.0
    down: float = 1.0


NONE = Multipliers()


@dataclass(frozen=True, slots=True)
class SideBySide:
    attention: GQA
    state_space: Mamba2
    multipliers: Multipliers = NONE

    window = None
    causal = True
    kind: ClassVar[Kind] = "full"

    @property
    def num_heads(self) -> int:
        return self.attention.num_heads

    @property
    def rope(self) -> Rope | None:
        return self.attention.rope

    @property
    def q_size(self) -> int:
        return self.attention.q_size

    @property
    def kv_values_per_token(self) -> int:
        return self.attention.kv_values_per_token

    @property
    def cache_shape(self) -> tuple[int, ...]:
        return self.attention.cache_shape

    @property
    def flops_per_pair(self) -> int:
        return self.attention.flops_per_pair

    @property
    def state_values(self) -> int:
        return self.state_space.state_values

    def num_parameters(self, hidden_size: int) -> int:
        return self.attention.num_parameters(hidden_size) + self.state_space.num_parameters(hidden_size)
