"""Qwen 3: Qwen 2 without the biases, with a norm over each head of q and k."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models.architectures import llama, qwen2
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import DecoderShape, activation, shape_from_config
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec

recipes = llama.recipes
gguf_recipes = qwen2.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    attention = attention_from_config(fields, shape)
    mlp = GatedMLP(shape.width, activation(fields))
    windows = qwen2.upper_windows(fields, shape.num_layers)
    layers = [Layer(replace(attention, window=window), mlp) for window in windows]
    return shape.model("qwen3", layers)


def attention_from_config(fields: Fields, shape: DecoderShape) -> GQA:
    bias = fields.flag("attention_bias", False)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    return replace(shape.attention(rope), qk_norm="head", qkv_bias=bias, out_bias=bias)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape)), qk_norm="head")
    return shape.alike("qwen3", attention, head.gated_mlp(shape))
