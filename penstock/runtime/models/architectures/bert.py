"""BERT-style encoders that make one vector of a text: every token sees every other, norms stand on the residual."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.pooling import Pooling, pooling_from_gguf
from penstock.runtime.models.reading.shape import (
    MAX_POSITIONS,
    MAX_TOKEN_TYPES,
    DecoderShape,
    activation,
    shape_from_config,
)
from penstock.runtime.models.spec import Activation, ModelSpec, Norm, PlainMLP
from penstock.runtime.models.weights import Recipes, Tensor

_BERT = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "layers": "encoder.layer.{}.",
    "attention.qkv": "attention.self.query attention.self.key attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_GGUF = {**naming.GGUF, "attention_norm": "attn_output_norm", "mlp_norm": "layer_output_norm"}
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("is_decoder", False)
    fields.expect("add_cross_attention", False)
    fields.expect("position_embedding_type", "absolute")
    eps = fields.number("layer_norm_eps", 0.0, 1.0, 1e-12)
    shape = replace(shape_from_config(fields.or_else({"rms_norm_eps": eps})), norm=Norm("layer", eps))
    fields.whole("max_position_embeddings", 1, MAX_POSITIONS)
    token_types = fields.whole("type_vocab_size", 0, MAX_TOKEN_TYPES, 2)
    return _spec(shape, activation(fields, default="gelu"), token_types, "mean")


def _spec(shape: DecoderShape, activation: Activation, token_types: int, pooling: Pooling) -> ModelSpec:
    attention = replace(shape.attention(None), causal=False, qkv_bias=True, out_bias=True)
    return replace(
        shape.alike("bert", attention, PlainMLP(shape.width, activation, bias=True), "residual"),
        tied_embedding=False,
        learned_positions=shape.context,
        token_types=token_types,
        embedding_norm=True,
        pooling=pooling,
    )


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    prefix = naming.find_prefix(names, "embeddings.word_embeddings.weight", ("", "bert."))

    def found(tensor: Tensor) -> Tensor:
        """The oldest checkpoints call a norm's weight and bias gamma and beta."""
        norm, is_norm, kind = tensor.name.partition("LayerNorm.")
        old = norm + _OLD_NAMES.get(is_norm + kind, "")
        return Tensor(prefix + (old if prefix + old in names else tensor.name))

    return naming.on_all(naming.recipes_of(spec, _BERT), found)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape("layer")
    fields = head.fields
    fields.expect("attention.causal", False)
    fields.whole("context_length", 1, MAX_POSITIONS)
    token_types = head.general.whole("tokenizer.ggml.token_type_count", 1, MAX_TOKEN_TYPES, 2)
    return _spec(shape, "gelu", token_types if "token_types.weight" in head.names else 0, pooling_from_gguf(fields))


def gguf_recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _GGUF, names)
