"""Mixtral: Mistral's attention before a mixture of eight experts, two of which see each token."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.architectures import llama
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import activation, mixture, shape_from_config, sliding_window
from penstock.runtime.models.spec import GatedMLP, ModelSpec
from penstock.runtime.models.weights import Recipes

gguf_recipes = llama.gguf_recipes
_NAMES = {
    **naming.HF,
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.gate_up": "block_sparse_moe.experts.{}.w1 block_sparse_moe.experts.{}.w3",
    "mlp.experts.down": "block_sparse_moe.experts.{}.w2",
}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("attention_bias", False)
    shape = shape_from_config(fields)
    rope = rope_from_config(fields, shape.head_dim, shape.context, theta=1e6)
    attention = replace(shape.attention(rope), window=sliding_window(fields))
    expert = GatedMLP(shape.width, activation(fields))
    return shape.alike("mixtral", attention, mixture(fields, "num_local_experts", shape, expert, normalize=True))


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _NAMES)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape)), window=head.window())
    return shape.alike("mixtral", attention, head.experts(shape))
