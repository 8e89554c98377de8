"""LFM2: short convolutions, and full attention in some layers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import hf_names
from penstock.runtime.models.fields import Fields
from penstock.runtime.models.kinds.recurrent import ShortConv
from penstock.runtime.models.positions import rope_from_config
from penstock.runtime.models.shape import MAX_WIDTH, shape_from_config
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec
from penstock.runtime.models.weights import Concat, Recipes, Tensor

KINDS = {"conv": False, "short_conv": False, "full_attention": True}


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
    found = hf_names.ends(spec, "model.embed_tokens.weight", "model.embedding_norm.weight")
    for index, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.", f"model.layers.{index}."
        found |= {
            f"{ours}attention_norm.weight": Tensor(f"{theirs}operator_norm.weight"),
            f"{ours}mlp_norm.weight": Tensor(f"{theirs}ffn_norm.weight"),
            f"{ours}mlp.gate_up.weight": Concat(
                (Tensor(f"{theirs}feed_forward.w1.weight"), Tensor(f"{theirs}feed_forward.w3.weight"))
            ),
            f"{ours}mlp.down.weight": Tensor(f"{theirs}feed_forward.w2.weight"),
        }
        part, theirs = f"{ours}attention.", f"{theirs}{'self_attn' if isinstance(layer.attention, GQA) else 'conv'}."
        if isinstance(layer.attention, GQA):
            found |= {
                f"{part}qkv.weight": Concat(tuple(Tensor(f"{theirs}{name}_proj.weight") for name in "qkv")),
                f"{part}out.weight": Tensor(f"{theirs}out_proj.weight"),
                f"{part}q_norm.weight": Tensor(f"{theirs}q_layernorm.weight"),
                f"{part}k_norm.weight": Tensor(f"{theirs}k_layernorm.weight"),
            }
            continue
        found[f"{part}conv"] = Tensor(f"{theirs}conv.weight")
        biased = isinstance(layer.attention, ShortConv) and layer.attention.bias
        for kind in ("weight", "bias") if biased else ("weight",):
            found[f"{part}into.{kind}"] = Tensor(f"{theirs}in_proj.{kind}")
            found[f"{part}out.{kind}"] = Tensor(f"{theirs}out_proj.{kind}")
        if biased:
            found[f"{part}conv_bias"] = Tensor(f"{theirs}conv.bias")
    return found
