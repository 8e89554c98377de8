"""Gemma 2: norms before and after each sublayer, a window on every other layer, soft caps on both kinds of logits."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import (
    DecoderShape,
    activation,
    local_layers,
    shape_from_config,
    sliding_layers,
    sliding_window,
)
from penstock.runtime.models.spec import GatedMLP, ModelSpec
from penstock.runtime.models.weights import Recipes

gguf_recipes = naming.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("use_bidirectional_attention", False)
    fields.expect("attention_bias", False)
    shape = shape_from_config(fields, tied=True)
    attention = replace(
        shape.attention(rope_from_config(fields, shape.head_dim, shape.context)),
        scale=fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0) ** -0.5,
        logit_softcap=fields.optional_number("attn_logit_softcapping", 1e-6, 1e9, 50.0),
    )
    mlp = GatedMLP(shape.width, activation(fields, "hidden_activation", "gelu_pytorch_tanh"))
    is_local = sliding_layers(fields, shape.num_layers, lambda index: index % 2 == 0)
    layers = local_layers(attention, mlp, sliding_window(fields, default=4096), is_local, "sandwich")
    return replace(
        shape.model("gemma2", layers),
        embedding_scale=shape.hidden_size**0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping", 1e-6, 1e9, 30.0),
    )


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    # Gemma's norms store their distance from one.
    return naming.recipes_of(spec, naming.HF_SANDWICH, norm_plus=1.0)


def gguf_scale(shape: DecoderShape, num_layers_of_27b: int) -> float:
    """GGUF has no key for it: the models of 27B share the hidden size among heads, the others use the head's own."""
    is_27b = shape.num_layers == num_layers_of_27b
    return float((shape.hidden_size // shape.num_heads if is_27b else shape.head_dim) ** -0.5)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(
        shape.attention(head.rope(shape)),
        scale=gguf_scale(shape, num_layers_of_27b=46),
        logit_softcap=head.fields.number("attn_logit_softcapping", 1e-6, 1e9, 50.0),
    )
    mlp = head.gated_mlp(shape, "gelu_tanh")
    is_local = head.sliding_layers(shape.num_layers, every=2)
    layers = local_layers(attention, mlp, head.window() or 4096, is_local, "sandwich")
    return replace(
        shape.model("gemma2", layers),
        embedding_scale=shape.hidden_size**0.5,
        logit_softcap=head.fields.number("final_logit_softcapping", 1e-6, 1e9, 30.0),
    )
