"""Llama 2 and 3, and the many that share their shape: SmolLM2, TinyLlama, ..."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import gguf_names, hf_names
from penstock.runtime.models.fields import Fields
from penstock.runtime.models.gguf_head import GgufHead
from penstock.runtime.models.positions import rope_from_config
from penstock.runtime.models.shape import activation, shape_from_config
from penstock.runtime.models.spec import GatedMLP, ModelSpec
from penstock.runtime.models.weights import Recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    bias = fields.flag("attention_bias", False)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    attention = replace(shape.attention(rope), qkv_bias=bias, out_bias=bias)
    mlp = GatedMLP(shape.width, activation(fields), bias=fields.flag("mlp_bias", False))
    return shape.alike("llama", attention, mlp)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return hf_names.decoder(spec, hf_names.find_prefix(names, "embed_tokens.weight", ("model.", "")))


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(
        shape.attention(head.rope(shape)),
        qkv_bias="blk.0.attn_q.bias" in head.names,
        out_bias="blk.0.attn_output.bias" in head.names,
    )
    return shape.alike("llama", attention, head.gated_mlp(shape))


def gguf_recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return gguf_names.model(spec, names, neighbours_paired=True)
