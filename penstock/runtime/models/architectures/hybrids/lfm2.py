"""LFM2: short convolutions, and full attention in some layers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.kinds.recurrent import ShortConv
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import MAX_WIDTH, shape_from_config
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec
from penstock.runtime.models.weights import Recipes

KINDS = {"conv": False, "short_conv": False, "full_attention": True}
_NAMES = {
    **naming.HF,
    "norm": "model.embedding_norm",
    "attention_norm": "operator_norm",
    "attention.out": "self_attn.out_proj",
    "attention.q_norm": "self_attn.q_layernorm",
    "attention.k_norm": "self_attn.k_layernorm",
    "conv.into": "conv.in_proj",
    "conv.conv": "conv.conv.weight",
    "conv.conv_bias": "conv.conv.bias",
    "conv.out": "conv.out_proj",
    "mlp_norm": "ffn_norm",
    "mlp.gate_up": "feed_forward.w1 feed_forward.w3",
    "mlp.down": "feed_forward.w2",
}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields = fields.or_else({"rms_norm_eps": fields.number("norm_eps", 0.0, 1.0, 1e-5)})
    shape = shape_from_config(fields, tied=fields.flag("tie_embedding", True))
    attention = replace(shape.attention(rope_from_config(fields, shape.head_dim, shape.context)), qk_norm="head")
    conv = ShortConv(shape.hidden_size, fields.whole("conv_L_cache", 2, 64), fields.flag("conv_bias", False))
    mlp = GatedMLP(_width(fields, shape.width), "silu")
    is_attention = fields.choices("layer_types", KINDS, shape.num_layers)
    return shape.model("lfm2", [Layer(attention if here else conv, mlp) for here in is_attention])


def _width(fields: Fields, width: int) -> int:
    """The stated width is the one before gating took a third of it away."""
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(fields.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * int(2 * width / 3))
    step = fields.whole("block_multiple_of", 1, MAX_WIDTH, 256)
    return -(-width // step) * step


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    return naming.recipes_of(spec, _NAMES)
