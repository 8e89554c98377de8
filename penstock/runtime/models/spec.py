"""What a model is made of, as plain values.

An architecture is data: KV sizing, parameter counts, the cost model and the module builder all read `ModelSpec`.
Nothing here knows about torch, files or devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.errors import ModelFileError
from penstock.runtime.models.kinds.attention import GQA as GQA
from penstock.runtime.models.kinds.attention import DynamicScaling as DynamicScaling
from penstock.runtime.models.kinds.attention import LinearScaling as LinearScaling
from penstock.runtime.models.kinds.attention import Llama3Scaling as Llama3Scaling
from penstock.runtime.models.kinds.attention import LongRopeScaling as LongRopeScaling
from penstock.runtime.models.kinds.attention import Rope as Rope
from penstock.runtime.models.kinds.attention import RopeScaling as RopeScaling
from penstock.runtime.models.kinds.attention import YarnScaling as YarnScaling
from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.kinds.cache import CacheGroup, CacheLayout, Kind, cache_groups, cache_layout
from penstock.runtime.models.kinds.recurrent import GatedDelta, Mamba2, ShortConv
from penstock.runtime.models.kinds.side_by_side import SideBySide

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2", "swiglu_clamped"]
"""`relu2` is the square of what is above zero (Nemotron-H). `swiglu_clamped` is GPT-OSS's gate: clamp to 7, then
gate * sigmoid(1.702 * gate) * (up + 1)."""

NormPlacement = Literal["pre", "post", "sandwich", "residual"]
"""Where a sublayer f is normed:

pre       x + f(norm(x))            most decoders
post      x + norm(f(x))            OLMo-2
sandwich  x + norm(f(norm(x)))      Gemma 2 and 3
residual  norm(x + f(x))            BERT
"""
NORM_NAMES: dict[NormPlacement, tuple[str, ...]] = {
    "pre": ("attention_norm", "mlp_norm"),
    "post": ("attention_post_norm", "mlp_post_norm"),
    "sandwich": ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm"),
    "residual": ("attention_norm", "mlp_norm"),
}
"""Norms that a layer has."""


@dataclass(frozen=True, slots=True)
class Norm:
    """`rms` has a weight, `layer` a weight and a bias."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class MLA:
    """Multi-head latent attention: what is cached of a token is one latent and one rotated key, whatever the heads.

    x -> latent of `kv_rank` -> keys (`plain_dim`) and values (`value_dim`) of every head
    x -> one key of `rope.dim` numbers, rotated, shared by all heads
    x -> (latent of `q_rank`, if there is one) -> queries of `plain_dim` + `rope.dim` for every head
    """

    num_heads: int
    kv_rank: int
    plain_dim: int
    """Numbers of a head's queries and keys that are not rotated."""
    value_dim: int
    rope: Rope
    scale: float
    q_rank: int | None = None
    """None: queries are made of x at once."""
    bias: bool = False
    """Biases on the projections of x and on the output."""

    window = None
    causal = True
    state_values = 0
    kind: ClassVar[Kind] = "latent"

    @property
    def q_size(self) -> int:
        return self.num_heads * (self.plain_dim + self.rope.dim)

    @property
    def kv_values_per_token(self) -> int:
        return self.kv_rank + self.rope.dim

    @property
    def cache_shape(self) -> tuple[int, ...]:
        return (self.kv_values_per_token,)

    @property
    def flops_per_pair(self) -> int:
        """With keys and values expanded, as prompts are computed. A decode step multiplies the latent itself: more
        operations, but there reading the latent's bytes takes the time."""
        return 2 * (self.q_size + self.num_heads * self.value_dim)

    def num_parameters(self, hidden_size: int) -> int:
        """Both latents are normed."""
        query_from = self.q_rank or hidden_size
        count = query_from * self.q_size
        if self.q_rank:
            count += hidden_size * self.q_rank + self.q_rank * (1 + self.bias)
        count += (hidden_size + self.bias) * (self.kv_rank + self.rope.dim) + self.kv_rank
        count += self.kv_rank * self.num_heads * (self.plain_dim + self.value_dim)
        return count + (self.num_heads * self.value_dim + self.bias) * hidden_size


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """What every token passes: into `width` numbers and back."""

    num_into: ClassVar[int]
    """Matrices into them."""

    width: int
    activation: Activation
    bias: bool = False

    def num_parameters(self, hidden_size: int) -> int:
        count = (self.num_into + 1) * self.width * hidden_size
        return count + (self.num_into * self.width + hidden_size) * self.bias

    num_active_parameters = num_parameters

    @property
    def inner_values(self) -> int:
        """Numbers of a token between the matrices."""
        return self.width


class GatedMLP(DenseMLP):
    """down(activation(gate(x)) * up(x))"""

    __slots__ = ()
    num_into = 2


class PlainMLP(DenseMLP):
    """down(activation(up(x)))"""

    __slots__ = ()
    num_into = 1


@dataclass(frozen=True, slots=True)
class MoE:
    """The `num_active` best of `num_experts` gated MLPs, weighted by their scores."""

    num_experts: int
    num_active: int
    expert: GatedMLP
    normalize: bool
    """The chosen weights are rescaled to sum to one."""
    router_bias: bool = False
    shared: GatedMLP | None = None
    """Sees every token beside the chosen experts (DeepSeek)."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """Over all experts, or each expert for itself with an offset that only the choice sees (DeepSeek-V3)."""
    scale: float = 1.0
    """Multiplies what the chosen experts give."""
    num_groups: int = 1
    num_active_groups: int = 1
    """Experts are chosen from the best groups only."""
    shared_gated: bool = False
    """What the shared one gives is multiplied by the sigmoid of a number of its own (Qwen3-Next)."""

    def _num_always(self, hidden_size: int) -> int:
        shared = self.shared.num_parameters(hidden_size) if self.shared else 0
        shared += hidden_size * self.shared_gated
        return shared + self.num_experts * (hidden_size + self.router_bias)

    def num_parameters(self, hidden_size: int) -> int:
        return self._num_always(hidden_size) + self.num_experts * self.expert.num_parameters(hidden_size)

    def num_active_parameters(self, hidden_size: int) -> int:
        return self._num_always(hidden_size) + self.num_active * self.expert.num_parameters(hidden_size)

    @property
    def inner_values(self) -> int:
        """Numbers of a token between the matrices of all experts that it chose, and of the shared one."""
        return self.num_active * self.expert.width + (self.shared.width if self.shared else 0)


Attention = GQA | MLA | Mamba2 | ShortConv | GatedDelta | Bounded | SideBySide


def only_gqa(part: object, purpose: str) -> GQA:
    """The attention for code that knows grouped queries alone; `purpose` ends the sentence "... is not"."""
    if not isinstance(part, GQA):
        raise ModelFileError(f"{type(part).__name__} is not {purpose}; serve another model or leave that out")
    return part


MLP = GatedMLP | PlainMLP | MoE

COUNTED_ALONE = {"llama4": "Llama 4"}
"""Architectures that are described, counted and planned for, and not computed."""

NO_MLP = PlainMLP(0, "relu2")
"""Of a layer that mixes tokens and does nothing else: it has neither an MLP nor the norm before one (Nemotron-H)."""


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    mlp: MLP
    norms: NormPlacement = "pre"
    residual_scale: float = 1.0
    """Multiplies what each sublayer adds to the stream (Granite)."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One whole model. Layers may differ (sliding beside full attention), so each is spelled out."""

    architecture: str
    """Our name: the stem of the file in `models/` that made this."""
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    norm: Norm
    max_context: int
    """Longest sequence the checkpoint was made for, scaling included."""
    tied_embedding: bool = False
    """The output matrix is the embedding matrix."""
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    """Multiplies scores over the vocabulary (Granite)."""
    learned_positions: int = 0
    """Rows of a learned position embedding (GPT-2, BERT); 0 for none."""
    token_types: int = 0
    """Rows of a token type embedding (BERT); 0 for none."""
    embedding_norm: bool = False
    pooling: Literal["mean", "cls"] | None = None
    """How an encoder makes one vector of a text; None for a model that generates."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def generates(self) -> bool:
        return self.pooling is None

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """Layers by what they remember of a sequence, and for how long."""
        return cache_groups([layer.attention for layer in self.layers])

    def cache_layout(self, *, frees: bool = True) -> CacheLayout:
        """Where each layer's keys lie; `frees` where blocks behind a window go back to the pool."""
        return cache_layout([layer.attention for layer in self.layers], frees=frees)

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """Bytes the KV cache grows by with each token of context (windows do not shrink a block)."""
        return round(sum(group.values_per_token for group in self.cache_groups) * bytes_per_value)

    def kv_bytes_in_sight(self, length: int, bytes_per_value: float) -> int:
        """Bytes of KV that a sequence of this length still reads: layers with a window need no more than that."""
        return round(bytes_per_value * sum(group.values_in_sight(length) for group in self.cache_groups))

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameter counts of embedding, attention, mlp, norms, output; they sum to the total."""
        hidden = self.hidden_size
        return {
            "embedding": (self.vocab_size + self.learned_positions + self.token_types) * hidden,
            "attention": sum(layer.attention.num_parameters(hidden) for layer in self.layers),
            "mlp": sum(layer.mlp.num_parameters(hidden) for layer in self.layers),
            "norms": sum(self._norm_sizes()),
            "output": self.vocab_size * hidden if self.generates and not self.tied_embedding else 0,
        }

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters_by_part.values())

    @property
    def num_active_parameters(self) -> int:
        """Parameters a single token is multiplied with: all of them but idle experts and the embedding rows not looked up."""
        hidden = self.hidden_size
        body = sum(
            layer.attention.num_parameters(hidden) + layer.mlp.num_active_parameters(hidden) for layer in self.layers
        )
        output = self.vocab_size * hidden if self.generates else 0
        return body + output + sum(self._norm_sizes())

    def _norm_sizes(self) -> Iterator[int]:
        size = self.hidden_size * (2 if self.norm.kind == "layer" else 1)
        for layer in self.layers:
            yield size * (4 if layer.norms == "sandwich" else 1 if layer.mlp == NO_MLP else 2)
        has_final = all(layer.norms != "residual" for layer in self.layers)
        yield size * (has_final + self.embedding_norm)
