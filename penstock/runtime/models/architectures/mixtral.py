"""Mixtral: Mistral's attention before a mixture of eight experts, two of which see each token."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import hf_names
from penstock.runtime.models.architectures import llama
from penstock.runtime.models.fields import Fields
from penstock.runtime.models.gguf_head import GgufHead
from penstock.runtime.models.positions import rope_from_config
from penstock.runtime.models.shape import activation, num_experts, shape_from_config, sliding_window
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec, MoE
from penstock.runtime.models.weights import Recipes

gguf_recipes = llama.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("attention_bias", False)
    shape = shape_from_config(fields)
    rope = rope_from_config(fields, shape.head_dim, shape.context, theta=1e6)
    attention = replace(shape.attention(rope), window=sliding_window(fields))
    count = num_experts(fields, "num_local_experts", shape.num_layers)
    mlp = MoE(
        num_experts=count,
        num_active=fields.whole("num_experts_per_tok", 1, count),
        expert=GatedMLP(shape.width, activation(fields)),
        normalize=True,
    )
    layers = [Layer(attention, mlp)] * shape.num_layers
    return shape.model("mixtral", layers)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return hf_names.decoder(spec) | hf_names.experts(spec, "block_sparse_moe", gate="w1", up="w3", down="w2")


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape)), window=head.window())
    layers = [Layer(attention, head.experts(shape))] * shape.num_layers
    return shape.model("mixtral", layers)
