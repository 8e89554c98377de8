"""Falcon-H1: attention and a Mamba-2 layer side by side in every layer, with multipliers on what goes in and comes out."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import hf_names
from penstock.runtime.models.fields import Fields
from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.models.kinds.side_by_side import Multipliers, SideBySide
from penstock.runtime.models.positions import rope_from_config
from penstock.runtime.models.shape import MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, activation, shape_from_config
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec
from penstock.runtime.models.weights import Concat, Recipe, Recipes, Take, Tensor, Times

LEAST, MOST = 1e-9, 1e9


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    bias = fields.flag("attention_bias", False)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    attention = replace(shape.attention(rope), qkv_bias=bias, out_bias=bias)
    part = SideBySide(attention, _mamba(fields, shape.hidden_size), _multipliers(fields))
    mlp = GatedMLP(shape.width, activation(fields), fields.flag("mlp_bias", False))
    return replace(
        shape.model("falcon_h1", [Layer(part, mlp)] * shape.num_layers),
        embedding_scale=fields.number("embedding_multiplier", LEAST, MOST, 1.0),
        logit_scale=fields.number("lm_head_multiplier", LEAST, MOST, 1.0),
    )


def _mamba(fields: Fields, hidden_size: int) -> Mamba2:
    heads = fields.whole("mamba_n_heads", 1, MAX_HEADS)
    if fields.has("mamba_d_ssm"):
        inner = fields.whole("mamba_d_ssm", 1, MAX_WIDTH)
    else:
        inner = hidden_size * fields.whole("mamba_expand", 1, 64, 2)
    if inner % heads:
        raise fields.wrong("mamba_n_heads", f"a number that {inner:,} can be shared by")
    is_normed = fields.flag("mamba_rms_norm", False)
    groups = fields.whole("mamba_n_groups", 1, MAX_HEADS, 1)
    low, high = _step_limits(fields)
    return Mamba2(
        num_heads=heads,
        head_dim=inner // heads,
        state_size=fields.whole("mamba_d_state", 1, MAX_HEAD_DIM),
        num_groups=groups,
        width=fields.whole("mamba_d_conv", 2, 64, 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        out_bias=fields.flag("projectors_bias", False),
        min_step=low,
        max_step=high,
        norm=("before gate" if fields.flag("mamba_norm_before_gate", True) else "after gate") if is_normed else None,
        norm_groups=groups,
    )


def _step_limits(fields: Fields) -> tuple[float, float]:
    """JSON has no infinity: some writers spell one out."""
    if not fields.has("time_step_limit"):
        return 0.0, float("inf")
    limits = [
        float("inf") if limit in ("Infinity", {"__float__": "Infinity"}) else limit
        for limit in fields.items("time_step_limit", 2)
    ]
    low, high = Fields({"time_step_limit": limits}).numbers("time_step_limit", 2, 0.0, float("inf"))
    return low, high


def _multipliers(fields: Fields) -> Multipliers:
    def one(name: str) -> float:
        return fields.number(name, LEAST, MOST, 1.0)

    def several(name: str, count: int) -> tuple[float, ...]:
        return fields.numbers(name, count, LEAST, MOST) if fields.has(name) else (1.0,) * count

    gate, down = several("mlp_multipliers", 2)
    return Multipliers(
        attention_in=one("attention_in_multiplier"),
        key=one("key_multiplier"),
        attention_out=one("attention_out_multiplier"),
        mamba_in=one("ssm_in_multiplier"),
        mamba_parts=several("ssm_multipliers", 5),
        mamba_out=one("ssm_out_multiplier"),
        gate=gate,
        down=down,
    )


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    found = hf_names.ends(spec, "model.embed_tokens.weight", "model.final_layernorm.weight")
    for index, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.", f"model.layers.{index}."
        found[f"{ours}attention_norm.weight"] = Tensor(f"{theirs}input_layernorm.weight")
        found[f"{ours}mlp_norm.weight"] = Tensor(f"{theirs}pre_ff_layernorm.weight")
        if isinstance(layer.attention, SideBySide):
            found |= _mixers(layer.attention, f"{ours}attention.", theirs)
            found |= _mlp(layer, layer.attention.multipliers, f"{ours}mlp.", f"{theirs}feed_forward.")
    return found


def _mixers(part: SideBySide, ours: str, theirs: str) -> Recipes:
    by, at = part.multipliers, f"{theirs}self_attn."
    found: Recipes = {}
    for kind in ("weight", "bias") if part.attention.qkv_bias else ("weight",):
        # A bias is added after what goes in was multiplied.
        into = by.attention_in if kind == "weight" else 1.0
        factors = {"q": into, "k": into * by.key, "v": into}
        rows = tuple(_times(Tensor(f"{at}{name}_proj.{kind}"), factor) for name, factor in factors.items())
        found[f"{ours}attention.qkv.{kind}"] = Concat(rows)
        found[f"{ours}attention.out.{kind}"] = _times(Tensor(f"{at}o_proj.{kind}"), by.attention_out)
    return found | _state_space(part.state_space, by, f"{ours}state_space.", f"{theirs}mamba.")


def _state_space(part: Mamba2, by: Multipliers, ours: str, theirs: str) -> Recipes:
    found = hf_names.mamba(part, ours, theirs)
    size = part.num_groups * part.state_size
    sizes = (part.inner, part.inner, size, size, part.num_heads)
    for kind in ("weight", "bias") if part.bias else ("weight",):
        whole, rows = Tensor(f"{theirs}in_proj.{kind}"), []
        begin = 0
        for count, factor in zip(sizes, by.mamba_parts):
            factor = factor * by.mamba_in if kind == "weight" else factor
            rows.append(_times(Take(whole, begin, begin + count), factor))
            begin += count
        found[f"{ours}into.{kind}"] = Concat(tuple(rows))
    for kind in ("weight", "bias") if part.out_bias else ("weight",):
        found[f"{ours}out.{kind}"] = _times(Tensor(f"{theirs}out_proj.{kind}"), by.mamba_out)
    return found


def _mlp(layer: Layer, by: Multipliers, ours: str, theirs: str) -> Recipes:
    has_bias = isinstance(layer.mlp, GatedMLP) and layer.mlp.bias
    found: Recipes = {}
    for kind in ("weight", "bias") if has_bias else ("weight",):
        gate = _times(Tensor(f"{theirs}gate_proj.{kind}"), by.gate)
        found[f"{ours}gate_up.{kind}"] = Concat((gate, Tensor(f"{theirs}up_proj.{kind}")))
        found[f"{ours}down.{kind}"] = _times(Tensor(f"{theirs}down_proj.{kind}"), by.down)
    return found


def _times(part: Recipe, factor: float) -> Recipe:
    return part if factor == 1.0 else Times(part, factor)
