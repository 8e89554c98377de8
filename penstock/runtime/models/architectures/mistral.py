"""Mistral 7B: Llama's shape, in its first version with a window over the keys of every layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models.architectures import llama
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import activation, shape_from_config, sliding_window
from penstock.runtime.models.spec import GatedMLP, ModelSpec, only_gqa

recipes = llama.recipes
gguf_recipes = llama.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("layer_types")
    fields.expect("attention_bias", False)
    shape = shape_from_config(fields)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    attention = replace(shape.attention(rope), window=sliding_window(fields, default=4096))
    return shape.alike("mistral", attention, GatedMLP(shape.width, activation(fields)))


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    spec = llama.spec_from_gguf(head)
    layers = (
        replace(layer, attention=replace(only_gqa(layer.attention, "Mistral's"), window=head.window()))
        for layer in spec.layers
    )
    return replace(spec, architecture="mistral", layers=tuple(layers))
