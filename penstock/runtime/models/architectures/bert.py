"""BERT-style encoders that make one vector of a text: every token sees every other, norms stand on the residual."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import gguf_names, hf_names
from penstock.runtime.models.fields import Fields
from penstock.runtime.models.gguf_head import GgufHead
from penstock.runtime.models.pooling import Pooling, pooling_from_gguf
from penstock.runtime.models.shape import MAX_POSITIONS, MAX_TOKEN_TYPES, DecoderShape, activation, shape_from_config
from penstock.runtime.models.spec import Activation, ModelSpec, Norm, PlainMLP
from penstock.runtime.models.weights import Concat, Recipe, Recipes, Tensor

gguf_recipes = gguf_names.model
_MATRICES = {"attention.out": "attention.output.dense", "mlp.up": "intermediate.dense", "mlp.down": "output.dense"}
_NORMS = {"attention_norm": "attention.output.LayerNorm", "mlp_norm": "output.LayerNorm"}


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
    prefix = hf_names.find_prefix(names, "embeddings.word_embeddings.weight", ("", "bert."))

    def norm(name: str) -> dict[str, Recipe]:
        """Weight and bias; the oldest checkpoints call them gamma and beta."""
        old = {"weight": "gamma", "bias": "beta"} if f"{name}.gamma" in names else {}
        return {kind: Tensor(f"{name}.{old.get(kind, kind)}") for kind in ("weight", "bias")}

    embeddings = f"{prefix}embeddings."
    found: Recipes = {
        "embedding.weight": Tensor(f"{embeddings}word_embeddings.weight"),
        "positions.weight": Tensor(f"{embeddings}position_embeddings.weight"),
    }
    if spec.token_types:
        found["token_types.weight"] = Tensor(f"{embeddings}token_type_embeddings.weight")
    norms = {"embedding_norm": f"{embeddings}LayerNorm"}
    for index in range(spec.num_layers):
        ours, theirs = f"layers.{index}.", f"{prefix}encoder.layer.{index}."
        norms |= {f"{ours}{mine}": f"{theirs}{name}" for mine, name in _NORMS.items()}
        for kind in ("weight", "bias"):
            parts = (f"{theirs}attention.self.{part}.{kind}" for part in ("query", "key", "value"))
            found[f"{ours}attention.qkv.{kind}"] = Concat(tuple(map(Tensor, parts)))
            found |= {f"{ours}{mine}.{kind}": Tensor(f"{theirs}{name}.{kind}") for mine, name in _MATRICES.items()}
    for mine, theirs in norms.items():
        found |= {f"{mine}.{kind}": recipe for kind, recipe in norm(theirs).items()}
    return found


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape("layer")
    fields = head.fields
    fields.expect("attention.causal", False)
    fields.whole("context_length", 1, MAX_POSITIONS)
    token_types = head.general.whole("tokenizer.ggml.token_type_count", 1, MAX_TOKEN_TYPES, 2)
    return _spec(shape, "gelu", token_types if "token_types.weight" in head.names else 0, pooling_from_gguf(fields))
