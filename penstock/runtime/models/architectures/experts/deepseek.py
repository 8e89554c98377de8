"""DeepSeek V2, V3 and R1: latent attention, dense first layers, then experts of which one or two see every token.

Kimi K2 and GLM-4.7-Flash have the same blocks. Checkpoints are read from safetensors.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.positions import rope_from_config, yarn_attention_factor
from penstock.runtime.models.reading.shape import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_WIDTH,
    DecoderShape,
    activation,
    num_experts,
    shape_from_config,
)
from penstock.runtime.models.spec import MLA, Activation, GatedMLP, Layer, ModelSpec, MoE
from penstock.runtime.models.weights import Recipes, Tensor

_SCORES: dict[str, Literal["softmax", "sigmoid"]] = {"softmax": "softmax", "sigmoid": "sigmoid"}
_BY_GROUPS = {"greedy": False, "group_limited_greedy": True, "noaux_tc": True}
_V3 = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
"""What newer spellings of a V3 config leave out."""
_LIKE_V3 = ("deepseek_v3", "glm4_moe_lite")


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("moe_layer_freq", 1)
    if config.get("model_type") in _LIKE_V3:
        fields = fields.or_else(_V3)
    # A head's size follows from its parts; a head_dim that is stated means the rotated part.
    rotated = fields.whole("qk_rope_head_dim", 2, MAX_HEAD_DIM)
    shape = shape_from_config(fields.without("head_dim").or_else({"head_dim": rotated}))
    attention = _attention(fields, shape)
    function = activation(fields)
    dense, mixture = GatedMLP(shape.width, function), _mixture(fields, shape, function)
    layers = [Layer(attention, dense if is_dense else mixture) for is_dense in _dense_layers(fields, shape.num_layers)]
    return shape.model("deepseek", layers)


def _dense_layers(fields: Fields, num_layers: int) -> list[bool]:
    if not fields.has("mlp_layer_types"):
        num_dense = fields.whole("first_k_dense_replace", 0, MAX_LAYERS, 0)
        return [index < num_dense for index in range(num_layers)]
    kinds = fields.items("mlp_layer_types", num_layers)
    if any(kind not in ("dense", "sparse") for kind in kinds):
        raise fields.wrong("mlp_layer_types", "a list of dense and sparse")
    return [kind == "dense" for kind in kinds]


def _attention(fields: Fields, shape: DecoderShape) -> MLA:
    rope_dim = fields.whole("qk_rope_head_dim", 2, MAX_HEAD_DIM)
    plain_dim = fields.whole("qk_nope_head_dim", 1, MAX_HEAD_DIM)
    return MLA(
        num_heads=shape.num_heads,
        kv_rank=fields.whole("kv_lora_rank", 1, MAX_HIDDEN),
        q_rank=fields.whole("q_lora_rank", 1, MAX_HIDDEN) if fields.has("q_lora_rank") else None,
        plain_dim=plain_dim,
        value_dim=fields.whole("v_head_dim", 1, MAX_HEAD_DIM),
        rope=rope_from_config(fields, rope_dim, shape.context),
        scale=(plain_dim + rope_dim) ** -0.5 * _stretch(fields) ** 2,
        bias=fields.flag("attention_bias", False),
    )


def _stretch(fields: Fields) -> float:
    """By which YaRN as trained here multiplies queries, and keys, besides the angles."""
    section = fields.section("rope_scaling" if fields.has("rope_scaling") else "rope_parameters")
    share = section.number("mscale_all_dim", 0.0, 1e3, 0.0)
    return yarn_attention_factor(section.number("factor", 1.0, 1e6, 1.0), share) if share else 1.0


def _mixture(fields: Fields, shape: DecoderShape, function: Activation) -> MoE:
    count = num_experts(fields, "n_routed_experts", shape.num_layers)
    width = fields.whole("moe_intermediate_size", 1, MAX_WIDTH)
    num_shared = fields.whole("n_shared_experts", 0, MAX_EXPERTS, 0)
    num_groups = num_active_groups = 1
    if fields.choice("topk_method", _BY_GROUPS, "greedy"):
        num_groups = fields.whole("n_group", 1, count)
        num_active_groups = fields.whole("topk_group", 1, num_groups)
    return MoE(
        num_experts=count,
        num_active=fields.whole("num_experts_per_tok", 1, count),
        expert=GatedMLP(width, function),
        normalize=fields.flag("norm_topk_prob", False),
        shared=GatedMLP(num_shared * width, function) if num_shared else None,
        scores=fields.choice("scoring_func", _SCORES, "softmax"),
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
        num_groups=num_groups,
        num_active_groups=num_active_groups,
    )


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    """Of the layers that answer; `mtp_recipes` has the one behind them."""
    return naming.recipes_of(spec)


def mtp_recipes(spec: ModelSpec, names: Collection[str]) -> Recipes:
    """Of the layer behind the last, which foretells one token further; none where the checkpoint lacks it."""
    ours, theirs = f"layers.{spec.num_layers}.", f"model.layers.{spec.num_layers}."
    if f"{theirs}eh_proj.weight" not in names:
        return {}
    longer = replace(spec, layers=(*spec.layers, spec.layers[-1]))
    layer = {name.replace(ours, "layer."): recipe for name, recipe in recipes(longer).items() if name.startswith(ours)}
    beside = {"token_norm": "enorm", "state_norm": "hnorm", "join": "eh_proj", "norm": "shared_head.norm"}
    return layer | {f"{mine}.weight": Tensor(f"{theirs}{name}.weight") for mine, name in beside.items()}
