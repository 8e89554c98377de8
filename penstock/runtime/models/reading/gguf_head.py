"""The head of a GGUF file as architectures read it: metadata, tensor names and the factor tensors.

Owns GGUF's key names. Tensor data stays with the loader, except for the few factors that are really settings.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.models.reading import shape as limits
from penstock.runtime.models.reading.fields import GGUF, MAX_CONTEXT, Fields
from penstock.runtime.models.reading.positions import FACTOR_TENSORS, rope_from_gguf
from penstock.runtime.models.reading.shape import DecoderShape
from penstock.runtime.models.spec import MLP, Activation, GatedMLP, MoE, Norm, Rope

_SIZES = limits.SizeNames(
    hidden_size="embedding_length",
    num_layers="block_count",
    num_heads="attention.head_count",
    num_kv_heads="attention.head_count_kv",
    head_dim="attention.key_length",
    width="feed_forward_length",
    vocab_size="vocab_size",
    context="context_length",
)
_UNBUILT: dict[str, tuple[Any, ...]] = {
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.temperature_scale": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "nextn_predict_layers": (0,),
}
"""Keys that change what a model computes in ways no architecture here has, and the values that change nothing."""


@dataclass(frozen=True)
class GgufHead:
    metadata: Mapping[str, Any]
    names: Collection[str]
    """Of all tensors in the file (in all of its parts)."""
    factors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Contents of those of `FACTOR_TENSORS` that the file has."""

    def __post_init__(self) -> None:
        for name in FACTOR_TENSORS:
            if name in self.names and name not in self.factors:
                raise ModelFileError(f"the GGUF file has {name}, which scales RoPE, but its numbers were not read")

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise self.general.wrong("general.architecture", "the name of an architecture")
        return name

    @property
    def general(self) -> Fields:
        return Fields(self.metadata, GGUF)

    @property
    def fields(self) -> Fields:
        """The keys that stand under the architecture's name."""
        return Fields(self.metadata, GGUF, prefix=self.architecture + ".")

    def shape(self, norm: str = "rms") -> DecoderShape:
        fields = self.fields
        for name, allowed in _UNBUILT.items():
            fields.expect(name, *allowed)
        eps = "attention.layer_norm_rms_epsilon" if norm == "rms" else "attention.layer_norm_epsilon"
        tokens = None if fields.has("vocab_size") else len(self.general.items("tokenizer.ggml.tokens"))
        shape = limits.read_shape(
            fields,
            _SIZES,
            Norm("rms" if norm == "rms" else "layer", fields.number(eps, 0.0, 1.0)),
            tied="output.weight" not in self.names,
            vocab_size=tokens,
            needs_width=False,
        )
        fields.expect("attention.value_length", shape.head_dim)
        return shape

    def rope(self, shape: DecoderShape, *, truncate: bool = True, partial: bool = False) -> Rope:
        """`partial` says that the architecture may rotate only the first part of a head."""
        if not partial:
            self.fields.expect("rope.dimension_count", shape.head_dim)
        return rope_from_gguf(self.fields, self.factors, shape.head_dim, shape.context, truncate=truncate)

    def gated_mlp(self, shape: DecoderShape, activation: Activation = "silu") -> GatedMLP:
        self.fields.expect("expert_count", 0)
        if not shape.width:
            raise self.fields.wrong("feed_forward_length", "1 or more")
        return GatedMLP(shape.width, activation, bias="blk.0.ffn_gate.bias" in self.names)

    def experts(self, shape: DecoderShape, activation: Activation = "silu", *, bias: bool = False) -> MLP:
        """A mixture whose chosen weights sum to one, the only kind read from GGUF."""
        fields = self.fields
        for name, allowed in (
            ("expert_shared_count", 0),
            ("expert_weights_norm", True),
            ("expert_gating_func", 1),
            ("leading_dense_block_count", 0),
        ):
            fields.expect(name, allowed)
        num_experts = limits.num_experts(fields, "expert_count", shape.num_layers)
        width = fields.whole("expert_feed_forward_length", 1, limits.MAX_WIDTH, shape.width or None)
        return MoE(
            num_experts=num_experts,
            num_active=fields.whole("expert_used_count", 1, num_experts),
            expert=GatedMLP(width, activation, bias=bias),
            normalize=True,
            router_bias=bias,
        )

    def window(self) -> int | None:
        """0 means that there is none."""
        return self.fields.whole("attention.sliding_window", 0, MAX_CONTEXT, 0) or None

    def sliding_layers(self, num_layers: int, every: int) -> tuple[bool, ...]:
        """Which layers have a window where every `every`-th sees all; a pattern in the file takes precedence."""
        fields, name = self.fields, "attention.sliding_window_pattern"
        if fields.is_list(name):
            pattern = fields.items(name, num_layers)
            if not all(isinstance(is_sliding, bool) for is_sliding in pattern):
                raise fields.wrong(name, f"a list of {num_layers} flags")
            return tuple(pattern)
        every = fields.whole(name, 1, limits.MAX_LAYERS, every)
        return tuple((index + 1) % every != 0 for index in range(num_layers))
