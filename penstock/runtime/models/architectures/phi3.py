"""Phi 3 and Phi 4 mini: Llama's shape with fused matrices, long RoPE, and a rotation of part of each head."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import activation, shape_from_config, sliding_window
from penstock.runtime.models.spec import GatedMLP, ModelSpec
from penstock.runtime.models.weights import Recipes

_NAMES = {**naming.HF, "attention.qkv": "self_attn.qkv_proj", "mlp.gate_up": "mlp.gate_up_proj"}
_GGUF_NAMES = {**naming.GGUF, "mlp.gate_up": "ffn_up"}
"""The file's "up" holds the gate's rows before its own."""


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.expect(name, False)
    shape = shape_from_config(fields)
    rope = rope_from_config(fields, shape.head_dim, shape.context, partial=True)
    attention = replace(shape.attention(rope), window=sliding_window(fields))
    return shape.alike("phi3", attention, GatedMLP(shape.width, activation(fields)))


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _NAMES)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape, partial=True)), window=head.window())
    return shape.alike("phi3", attention, head.gated_mlp(shape))


def gguf_recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _GGUF_NAMES, names)
