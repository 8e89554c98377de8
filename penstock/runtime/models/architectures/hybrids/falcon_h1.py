"""Falcon-H1: attention and a Mamba-2 layer side by side in every layer, with multipliers on what goes in and comes out."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.models.kinds.side_by_side import Multipliers, SideBySide
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, activation, shape_from_config
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec
from penstock.runtime.models.weights import Concat, Recipe, Recipes, Take, Tensor, Times

LEAST, MOST = 1e-9, 1e9
_NAMES = {
    **naming.HF,
    "norm": "model.final_layernorm",
    "mlp_norm": "pre_ff_layernorm",
    "mlp.gate_up": "feed_forward.gate_proj feed_forward.up_proj",
    "mlp.down": "feed_forward.down_proj",
}


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
    found = naming.recipes_of(spec, _NAMES)
    part = spec.layers[0].attention
    return naming.on_all(found, partial(_multiplied, part)) if isinstance(part, SideBySide) else found


def _multiplied(part: SideBySide, tensor: Tensor) -> Recipe:
    """What the model would multiply activations by, its matrices are multiplied by as they are read."""
    by = part.multipliers
    factors = {
        "q_proj.weight": by.attention_in,
        "k_proj.weight": by.attention_in * by.key,
        "k_proj.bias": by.key,  # a bias is added after what goes in was multiplied
        "v_proj.weight": by.attention_in,
        "o_proj": by.attention_out,
        "out_proj": by.mamba_out,
        "gate_proj": by.gate,
        "down_proj": by.down,
    }
    module, kind = tensor.name.split(".")[-2:]
    if module == "in_proj":
        return _state_space_inputs(part.state_space, tensor, by, kind)
    return _times(tensor, factors.get(f"{module}.{kind}", factors.get(module, 1.0)))


def _state_space_inputs(part: Mamba2, whole: Tensor, by: Multipliers, kind: str) -> Recipe:
    size = part.num_groups * part.state_size
    rows, begin = [], 0
    for count, factor in zip((part.inner, part.inner, size, size, part.num_heads), by.mamba_parts):
        factor = factor * by.mamba_in if kind == "weight" else factor
        rows.append(_times(Take(whole, begin, begin + count), factor))
        begin += count
    return Concat(tuple(rows))


def _times(part: Recipe, factor: float) -> Recipe:
    return part if factor == 1.0 else Times(part, factor)
