"""The sizes every decoder has, read from either kind of file, and the parts of a spec that follow from them alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.errors import ModelFileError
from penstock.runtime.models.reading.fields import MAX_CONTEXT, Fields
from penstock.runtime.models.reading.positions import scaled_context
from penstock.runtime.models.spec import (
    GQA,
    MLP,
    Activation,
    GatedMLP,
    Layer,
    ModelSpec,
    MoE,
    Norm,
    NormPlacement,
    Rope,
)

MAX_LAYERS = 2048
MAX_HIDDEN = 2**18
MAX_WIDTH = 2**20
MAX_HEADS = 2**12
MAX_HEAD_DIM = 2**12
MAX_VOCABULARY = 2**24
MAX_EXPERTS = 2**16
"""In all layers together: each may be a tensor of its own."""
MAX_POSITIONS = 2**20
MAX_TOKEN_TYPES = 2**10

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True)
class DecoderShape:
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    width: int
    """Of the dense MLP; 0 where the file states none."""
    vocab_size: int
    context: int
    """As the file states it: some RoPE scalings stretch it."""
    norm: Norm
    tied: bool
    """The output matrix is the embedding matrix."""

    def attention(self, rope: Rope | None) -> GQA:
        return GQA(self.num_heads, self.num_kv_heads, self.head_dim, rope, scale=self.head_dim**-0.5)

    def model(self, architecture: str, layers: Iterable[Layer]) -> ModelSpec:
        layers = tuple(layers)
        rope = layers[0].attention.rope
        return ModelSpec(
            architecture=architecture,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            layers=layers,
            norm=self.norm,
            max_context=scaled_context(self.context, rope.scaling if rope else None),
            tied_embedding=self.tied,
        )

    def alike(self, architecture: str, attention: GQA, mlp: MLP, norms: NormPlacement = "pre") -> ModelSpec:
        """A model whose layers are all the same."""
        return self.model(architecture, [Layer(attention, mlp, norms)] * self.num_layers)


def local_layers(
    attention: GQA, mlp: MLP, window: int | None, is_local: Iterable[bool], norms: NormPlacement = "pre"
) -> list[Layer]:
    """Layers that are alike but for the window that some have."""
    return [Layer(replace(attention, window=window if here else None), mlp, norms) for here in is_local]


class SizeNames(NamedTuple):
    """What a kind of file calls the sizes that every decoder has."""

    hidden_size: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    num_kv_heads: str = "num_key_value_heads"
    head_dim: str = "head_dim"
    width: str = "intermediate_size"
    vocab_size: str = "vocab_size"
    context: str = "max_position_embeddings"


def shape_from_config(fields: Fields, *, tied: bool = False) -> DecoderShape:
    """By the names nearly every Hugging Face config shares; `tied` is what counts where it does not say."""
    norm = Norm("rms", fields.number("rms_norm_eps", 0.0, 1.0))
    return read_shape(fields, SizeNames(), norm, tied=fields.flag("tie_word_embeddings", tied))


def read_shape(
    fields: Fields, names: SizeNames, norm: Norm, *, tied: bool, vocab_size: int | None = None, needs_width: bool = True
) -> DecoderShape:
    """`vocab_size` is what counts where the file does not say."""
    hidden_size = fields.whole(names.hidden_size, 1, MAX_HIDDEN)
    num_heads = fields.whole(names.num_heads, 1, MAX_HEADS)
    if fields.has(names.head_dim):
        head_dim = fields.whole(names.head_dim, 1, MAX_HEAD_DIM)
    elif hidden_size % num_heads:
        raise ModelFileError(
            f"{fields.source}: a hidden size of {hidden_size} cannot be shared by {num_heads} heads; "
            "the file must state how much a head holds"
        )
    else:
        head_dim = hidden_size // num_heads
    num_kv_heads = fields.whole(names.num_kv_heads, 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise ModelFileError(
            f"{fields.source}: {num_heads} query heads cannot share {num_kv_heads} key-value heads evenly"
        )
    return DecoderShape(
        hidden_size=hidden_size,
        num_layers=fields.whole(names.num_layers, 1, MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        width=fields.whole(names.width, int(needs_width), MAX_WIDTH, None if needs_width else 0),
        vocab_size=fields.whole(names.vocab_size, 1, MAX_VOCABULARY, vocab_size),
        context=fields.whole(names.context, 1, MAX_CONTEXT),
        norm=norm,
        tied=tied,
    )


def num_experts(fields: Fields, name: str, num_layers: int) -> int:
    return fields.whole(name, 1, MAX_EXPERTS // num_layers)


def mixture(fields: Fields, name: str, shape: DecoderShape, expert: GatedMLP, **how: Any) -> MoE:
    """Experts as many as a field says, of which each token has `num_experts_per_tok`."""
    count = num_experts(fields, name, shape.num_layers)
    return MoE(count, fields.whole("num_experts_per_tok", 1, count), expert, **how)


def activation(fields: Fields, name: str = "hidden_act", default: str | None = "silu") -> Activation:
    return fields.choice(name, ACTIVATIONS, default)


def sliding_layers(fields: Fields, num_layers: int, rule: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have a window: as `layer_types` says, or by the architecture's own rule."""
    if not fields.has("layer_types"):
        return tuple(rule(index) for index in range(num_layers))
    kinds = fields.items("layer_types", num_layers)
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.wrong("layer_types", f"a list of {num_layers} words, full_attention or sliding_attention")
    return tuple(kind == "sliding_attention" for kind in kinds)


def sliding_window(fields: Fields, default: int | None = None) -> int | None:
    """Null means that there is none; the default applies only where the field is absent."""
    if not fields.has("sliding_window"):
        return None if fields.states("sliding_window") else default
    return fields.whole("sliding_window", 1, MAX_CONTEXT)
