"""Gemma 3, the text part: Gemma 2 with head norms instead of attention caps, five local layers to each global one."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.architectures import gemma2
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config, rope_from_section
from penstock.runtime.models.reading.shape import (
    MAX_LAYERS,
    DecoderShape,
    activation,
    shape_from_config,
    sliding_layers,
    sliding_window,
)
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, Rope
from penstock.runtime.models.weights import Recipes

# Published configs that hold a vision part state only where their text part departs from these.
DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}
LOCAL_THETA, GLOBAL_THETA = 10_000.0, 1_000_000.0

gguf_recipes = gemma2.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    outer = Fields(config)
    fields = (outer.section("text_config") if outer.has("text_config") else outer).or_else(DEFAULTS)
    fields.expect("use_bidirectional_attention", False)
    fields.expect("attention_bias", False)
    shape = shape_from_config(fields)
    attention = replace(
        shape.attention(None),
        scale=fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0) ** -0.5,
        logit_softcap=fields.optional_number("attn_logit_softcapping", 1e-6, 1e9),
        qk_norm="head",
    )
    mlp = GatedMLP(shape.width, activation(fields, "hidden_activation", "gelu_pytorch_tanh"))
    every = fields.whole("sliding_window_pattern", 1, MAX_LAYERS, 6)
    whole, local = _ropes(fields, shape)
    layers = _layers(
        replace(attention, rope=whole),
        replace(attention, rope=local, window=sliding_window(fields, default=4096)),
        mlp,
        sliding_layers(fields, shape.num_layers, lambda index: (index + 1) % every != 0),
    )
    return replace(
        shape.model("gemma3", layers),
        tied_embedding=outer.flag("tie_word_embeddings", True),
        max_context=shape.context,
        embedding_scale=shape.hidden_size**0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping", 1e-6, 1e9),
    )


def _layers(whole: GQA, local: GQA, mlp: GatedMLP, is_local: tuple[bool, ...]) -> list[Layer]:
    return [Layer(local if here else whole, mlp, "sandwich") for here in is_local]


def _ropes(fields: Fields, shape: DecoderShape) -> tuple[Rope, Rope]:
    """Of global layers, then of local ones: only the global ones are scaled."""
    if fields.has("rope_parameters"):
        both = fields.section("rope_parameters")
        sections = (both.section("full_attention"), GLOBAL_THETA), (both.section("sliding_attention"), LOCAL_THETA)
        whole, local = (rope_from_section(part, shape.head_dim, shape.context, theta) for part, theta in sections)
        return whole, local
    theta = fields.number("rope_local_base_freq", 2.0, 1e12, LOCAL_THETA)
    return rope_from_config(fields, shape.head_dim, shape.context, theta=GLOBAL_THETA), Rope(shape.head_dim, theta)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    prefixes = ("model.", "language_model.model.", "model.language_model.")
    prefix = naming.find_prefix(names, "embed_tokens.weight", prefixes)
    table = naming.prefixed(naming.HF_SANDWICH, prefix)
    if prefix == prefixes[1]:
        table["output"] = "language_model.lm_head"
    return naming.recipes_of(spec, table, norm_plus=1.0)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    fields = head.fields
    scale = gemma2.gguf_scale(shape, num_layers_of_27b=62)
    attention = replace(shape.attention(None), scale=scale, qk_norm="head")
    whole = head.rope(shape)
    local = Rope(whole.dim, fields.number("rope.freq_base_swa", 2.0, 1e12, LOCAL_THETA))
    window = head.window()
    layers = _layers(
        replace(attention, rope=whole),
        replace(attention, rope=local, window=window) if window else replace(attention, rope=whole),
        head.gated_mlp(shape, "gelu_tanh"),
        head.sliding_layers(shape.num_layers, every=6),
    )
    return replace(
        shape.model("gemma3", layers),
        max_context=shape.context,
        embedding_scale=shape.hidden_size**0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping", 1e-6, 1e9),
    )
