"""OLMo 2: norms after each sublayer instead of before, and over all of q and all of k."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models.architectures import llama, qwen2
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import activation, shape_from_config
from penstock.runtime.models.spec import GatedMLP, ModelSpec

recipes = llama.recipes
gguf_recipes = qwen2.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("clip_qkv")
    shape = shape_from_config(fields)
    bias = fields.flag("attention_bias", False)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    attention = replace(shape.attention(rope), qk_norm="full", qkv_bias=bias, out_bias=bias)
    return shape.alike("olmo2", attention, GatedMLP(shape.width, activation(fields)), "post")


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape)), qk_norm="full")
    return shape.alike("olmo2", attention, head.gated_mlp(shape), "post")
