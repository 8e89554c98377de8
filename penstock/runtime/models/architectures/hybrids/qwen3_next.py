"""Qwen3-Next: gated delta nets, gated full attention in every fourth layer, small experts and one that sees every token."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.kinds.recurrent import GatedDelta
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    DecoderShape,
    activation,
    mixture,
    shape_from_config,
)
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, MoE
from penstock.runtime.models.weights import Concat, Recipe, Recipes, Take, Tensor

KINDS = {"linear_attention": False, "full_attention": True}
_NAMES = {
    **naming.HF,
    "delta.conv": "linear_attn.conv1d.weight",
    "delta.step_bias": "linear_attn.dt_bias",
    "delta.decay_log": "linear_attn.A_log",
    "delta.norm": "linear_attn.norm",
    "delta.out": "linear_attn.out_proj",
    "mlp.shared.gate_up": "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
    "mlp.shared.down": "mlp.shared_expert.down_proj",
    "mlp.shared_gate": "mlp.shared_expert_gate",
}
EVERY = 4
"""Layers of which one is full attention, where the file does not say."""


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields = fields.or_else({"partial_rotary_factor": 0.25})
    shape = shape_from_config(fields)
    rope = rope_from_config(fields, shape.head_dim, shape.context, partial=True)
    bias = fields.flag("attention_bias", False)
    attention = replace(shape.attention(rope), qk_norm="head", qkv_bias=bias, out_bias=bias, gated=True)
    delta = GatedDelta(
        num_heads=fields.whole("linear_num_value_heads", 1, MAX_HEADS),
        num_key_heads=fields.whole("linear_num_key_heads", 1, MAX_HEADS),
        key_dim=fields.whole("linear_key_head_dim", 1, MAX_HEAD_DIM),
        value_dim=fields.whole("linear_value_head_dim", 1, MAX_HEAD_DIM),
        width=fields.whole("linear_conv_kernel_dim", 2, 64, 4),
    )
    if delta.num_heads % delta.num_key_heads:
        raise fields.wrong("linear_num_value_heads", "a multiple of linear_num_key_heads")
    dense = GatedMLP(shape.width, activation(fields))
    sparse = _mixture(fields, shape)
    step = fields.whole("decoder_sparse_step", 1, MAX_LAYERS, 1)
    always_dense = fields.items("mlp_only_layers") if fields.has("mlp_only_layers") else ()
    layers = [
        Layer(
            attention if is_full else delta,
            dense if sparse is None or index in always_dense or (index + 1) % step else sparse,
        )
        for index, is_full in enumerate(_full_layers(fields, shape.num_layers))
    ]
    return shape.model("qwen3_next", layers)


def _full_layers(fields: Fields, num_layers: int) -> list[bool]:
    if not fields.has("layer_types"):
        every = fields.whole("full_attention_interval", 1, MAX_LAYERS, EVERY)
        return [not (index + 1) % every for index in range(num_layers)]
    return fields.choices("layer_types", KINDS, num_layers)


def _mixture(fields: Fields, shape: DecoderShape) -> MoE | None:
    if not fields.whole("num_experts", 0, 2**16, 0):
        return None
    names = "moe_intermediate_size", "shared_expert_intermediate_size"
    expert, shared = (GatedMLP(fields.whole(name, 1, MAX_WIDTH), activation(fields)) for name in names)
    normalize = fields.flag("norm_topk_prob", True)
    return mixture(fields, "num_experts", shape, expert, normalize=normalize, shared=shared, shared_gated=True)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    """Norms store the distance from one, but for those of the delta nets. The layers after the last, which guess a token
    further, are left aside."""
    found = naming.recipes_of(spec, _NAMES, norm_plus=1.0)
    for index, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.attention.", f"model.layers.{index}."
        if isinstance(layer.attention, GatedDelta):
            found[f"{ours}into.weight"] = _delta_inputs(layer.attention, f"{theirs}linear_attn.")
        elif isinstance(layer.attention, GQA):
            found |= _gated(layer.attention, ours, f"{theirs}self_attn.")
    return found


def _gated(part: GQA, ours: str, theirs: str) -> Recipes:
    """Each head's query is followed by its gate."""
    found: Recipes = {}
    for kind in ("weight", "bias") if part.qkv_bias else ("weight",):
        both, size = Tensor(f"{theirs}q_proj.{kind}"), part.head_dim
        queries, gates = (_runs(both, part.num_heads, 2 * size, begin, size) for begin in (0, size))
        keys, values = (Tensor(f"{theirs}{name}_proj.{kind}") for name in "kv")
        found |= {f"{ours}qkv.{kind}": Concat((queries, keys, values)), f"{ours}gate.{kind}": gates}
    return found


def _delta_inputs(part: GatedDelta, theirs: str) -> Recipe:
    """By key head: query, key, then the values and gates, strengths and time steps of the heads that share them."""
    heads, shared = part.num_key_heads, part.num_heads // part.num_key_heads
    sizes = [part.key_dim, part.key_dim, shared * part.value_dim, shared * part.value_dim]
    big, small = Tensor(f"{theirs}in_proj_qkvz.weight"), Tensor(f"{theirs}in_proj_ba.weight")
    rows = [_runs(big, heads, sum(sizes), sum(sizes[:place]), size) for place, size in enumerate(sizes)]
    return Concat((*rows, *(_runs(small, heads, 2 * shared, begin, shared) for begin in (0, shared))))


def _runs(part: Tensor, count: int, stride: int, begin: int, size: int) -> Recipe:
    """`size` rows of every `stride`, from `begin` on."""
    starts = [number * stride + begin for number in range(count)]
    return Concat(tuple(Take(part, start, start + size) for start in starts))
