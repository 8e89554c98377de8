"""Granite 4: Mamba-2 layers, full attention in some, and experts of which one sees every token (or that one alone)."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    DecoderShape,
    activation,
    mixture,
    shape_from_config,
)
from penstock.runtime.models.spec import MLP, GatedMLP, Layer, ModelSpec
from penstock.runtime.models.weights import Recipes

KINDS = {"mamba": False, "linear_attention": False, "attention": True, "full_attention": True}
_NAMES = {
    **naming.HF,
    **dict.fromkeys(("mlp.gate_up", "mlp.shared.gate_up"), "shared_mlp.input_linear"),
    **dict.fromkeys(("mlp.down", "mlp.shared.down"), "shared_mlp.output_linear"),
    "mlp.router": "block_sparse_moe.router.layer",
    "mlp.experts.gate_up": "block_sparse_moe.input_linear",
    "mlp.experts.down": "block_sparse_moe.output_linear",
}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    rope = None
    if config.get("position_embedding_type") == "rope":
        rope = rope_from_config(fields, shape.head_dim, shape.context)
    bias = fields.flag("attention_bias", False)
    scale = fields.number("attention_multiplier", 1e-9, 1e9, 1.0)
    attention = replace(shape.attention(rope), qkv_bias=bias, out_bias=bias, scale=scale)
    mamba, mlp = _mamba(fields), _mlp(fields, shape)
    residual = fields.number("residual_multiplier", 1e-9, 1e9, 1.0)
    layers = [
        Layer(attention if is_attention else mamba, mlp, residual_scale=residual)
        for is_attention in fields.choices("layer_types", KINDS, shape.num_layers)
    ]
    return replace(
        shape.model("granite4", layers),
        embedding_scale=fields.number("embedding_multiplier", 1e-9, 1e9, 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1e-9, 1e9, 1.0),
    )


def _mamba(fields: Fields) -> Mamba2:
    return Mamba2(
        num_heads=fields.whole("mamba_n_heads", 1, MAX_HEADS),
        head_dim=fields.whole("mamba_d_head", 1, MAX_HEAD_DIM),
        state_size=fields.whole("mamba_d_state", 1, MAX_HEAD_DIM),
        num_groups=fields.whole("mamba_n_groups", 1, MAX_HEADS, 1),
        width=fields.whole("mamba_d_conv", 2, 64, 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        out_bias=fields.flag("mamba_proj_bias", False),
    )


def _mlp(fields: Fields, shape: DecoderShape) -> MLP:
    function = activation(fields)
    shared = GatedMLP(fields.whole("shared_intermediate_size", 1, MAX_WIDTH), function)
    if not fields.whole("num_local_experts", 0, 2**16, 0):
        return shared
    return mixture(fields, "num_local_experts", shape, GatedMLP(shape.width, function), normalize=True, shared=shared)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _NAMES)
