"""Qwen 3 with a mixture of experts, in all layers or in some."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.architectures import qwen2
from penstock.runtime.models.architectures.qwen3 import attention_from_config
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.shape import (
    MAX_LAYERS,
    MAX_WIDTH,
    activation,
    mixture,
    shape_from_config,
    sliding_window,
)
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec
from penstock.runtime.models.weights import Recipes

gguf_recipes = qwen2.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    window = sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    attention = replace(attention_from_config(fields, shape), window=window)
    name = "num_experts" if fields.has("num_experts") else "num_local_experts"
    expert = GatedMLP(fields.whole("moe_intermediate_size", 1, MAX_WIDTH), activation(fields))
    sparse = mixture(fields, name, shape, expert, normalize=fields.flag("norm_topk_prob", False))
    dense = GatedMLP(shape.width, activation(fields))
    step = fields.whole("decoder_sparse_step", 1, MAX_LAYERS, 1)
    always_dense = fields.items("mlp_only_layers") if fields.has("mlp_only_layers") else ()
    layers = [
        Layer(attention, dense if index in always_dense or (index + 1) % step else sparse)
        for index in range(shape.num_layers)
    ]
    return shape.model("qwen3_moe", layers)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape)), qk_norm="head")
    return shape.alike("qwen3_moe", attention, head.experts(shape))
