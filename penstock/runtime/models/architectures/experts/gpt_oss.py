"""GPT-OSS: a sink in every head's softmax, a window on every other layer, YaRN, experts with biases in 4-bit floats."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import (
    local_layers,
    mixture,
    shape_from_config,
    sliding_layers,
    sliding_window,
)
from penstock.runtime.models.spec import GatedMLP, ModelSpec, MoE
from penstock.runtime.models.weights import Concat, Mxfp4, Recipe, Recipes, Swap, Take, Tensor

_ROPE = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
_NAMES = {mine: name for mine, name in naming.HF.items() if ".experts." not in mine} | {"mlp.router": "mlp.router"}
_GGUF_NAMES = {**naming.GGUF, "mlp_norm": "post_attention_norm"}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("hidden_act", "silu")
    fields.expect("swiglu_alpha", 1.702)
    fields.expect("swiglu_limit", 7.0)
    if not fields.has("rope_scaling"):
        fields = fields.or_else({"rope_parameters": _ROPE})
    shape = shape_from_config(fields.or_else({"head_dim": 64}))
    bias = fields.flag("attention_bias", True)
    rope = rope_from_config(fields, shape.head_dim, shape.context, theta=150_000.0)
    attention = replace(shape.attention(rope), qkv_bias=bias, out_bias=bias, sinks=True)
    expert = GatedMLP(shape.width, "swiglu_clamped", bias=True)
    mlp = mixture(fields, "num_local_experts", shape, expert, normalize=True, router_bias=True)
    is_local = sliding_layers(fields, shape.num_layers, lambda index: index % 2 == 0)
    return shape.model("gpt_oss", local_layers(attention, mlp, sliding_window(fields, default=128), is_local))


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    found = naming.recipes_of(spec, _NAMES)
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, MoE):
            found |= _experts(layer.mlp.expert.width, f"layers.{index}.mlp.", f"model.layers.{index}.mlp.", names)
    return found


def _experts(width: int, ours: str, theirs: str, names: Collection[str]) -> Recipes:
    def matrix(name: str) -> Recipe:
        """[experts, rows, columns]: in 4 bits as published, or whole, stored input first."""
        blocks = f"{theirs}experts.{name}_blocks"
        if blocks in names:
            return Mxfp4(blocks, f"{theirs}experts.{name}_scales")
        return Swap(Tensor(f"{theirs}experts.{name}"))

    def gate_then_up(part: Recipe) -> Concat:
        """Their rows take turns: gate, up, gate, up, ..."""
        return Concat(tuple(Take(part, start, 2 * width, step=2, axis=1) for start in (0, 1)), axis=1)

    return {
        f"{ours}experts.gate_up.weight": gate_then_up(matrix("gate_up_proj")),
        f"{ours}experts.gate_up.bias": gate_then_up(Tensor(f"{theirs}experts.gate_up_proj_bias")),
        f"{ours}experts.down.weight": matrix("down_proj"),
        f"{ours}experts.down.bias": Tensor(f"{theirs}experts.down_proj_bias"),
    }


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape, truncate=False)), qkv_bias=True, out_bias=True, sinks=True)
    mlp = head.experts(shape, "swiglu_clamped", bias=True)
    is_local = head.sliding_layers(shape.num_layers, every=2)
    return shape.model("gpt_oss", local_layers(attention, mlp, head.window(), is_local))


def gguf_recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _GGUF_NAMES, names)
