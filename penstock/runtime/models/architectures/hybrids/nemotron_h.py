"""Nemotron-H: blocks of one mixer each, Mamba-2, attention without positions or a plain MLP, which a pattern puts in order.

A block that mixes tokens and the MLP behind it are one layer here; where another mixer follows at once, the layer has no MLP.
"""

from collections.abc import Collection, Mapping
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.models import naming
from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.shape import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, activation, shape_from_config
from penstock.runtime.models.spec import NO_MLP, Attention, Layer, ModelSpec, PlainMLP
from penstock.runtime.models.weights import Recipes

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}
KINDS |= {"mlp": "mlp", "moe": "moe"}
_NAMES = {"embedding": "model.embeddings", "norm": "model.norm_f", "output": "lm_head"}
_MIXER = {
    **{mine: name.replace("mamba.", "mixer.") for mine, name in naming.HF.items() if mine.startswith("mamba.")},
    "attention_norm": "norm",
    "attention.qkv": "mixer.q_proj mixer.k_proj mixer.v_proj",
    "attention.out": "mixer.o_proj",
}
_MLP = {"mlp_norm": "norm", "mlp.up": "mixer.up_proj", "mlp.down": "mixer.down_proj"}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    kinds = _blocks(config)
    names = {"rms_norm_eps": "layer_norm_epsilon", "head_dim": "attention_head_dim"}
    given = {ours: config[theirs] for ours, theirs in names.items() if config.get(theirs) is not None}
    fields = Fields({"rms_norm_eps": 1e-5, **config, **given, "num_hidden_layers": len(kinds)})
    shape = shape_from_config(fields)
    mixers: dict[str, Attention] = {"attention": shape.attention(None), "mamba": _mamba(fields)}
    mlp = PlainMLP(shape.width, activation(fields, "mlp_hidden_act", "relu2"), fields.flag("mlp_bias", False))
    layers = [
        Layer(mixers[kind], mlp if after == "mlp" else NO_MLP)
        for kind, after in zip(kinds, (*kinds[1:], ""))
        if kind != "mlp"
    ]
    return shape.model("nemotron_h", layers)


def _blocks(config: Mapping[str, Any]) -> list[str]:
    """What each block is, from the pattern of letters or the list of words."""
    fields = Fields(config)
    name = next((name for name in ("layers_block_type", "layer_types") if fields.has(name)), "hybrid_override_pattern")
    if name == "hybrid_override_pattern":
        kinds = [LETTERS.get(letter, "") for letter in str(config.get(name, ""))[: MAX_LAYERS + 1]]
    else:
        kinds = [KINDS.get(str(word), "") for word in fields.items(name)]
    if not 1 <= len(kinds) <= MAX_LAYERS or "" in kinds:
        raise fields.wrong(name, f"1 to {MAX_LAYERS:,} blocks: Mamba (M), attention (*), MLP (-)")
    if "moe" in kinds:
        raise ModelFileError(
            f"{fields.source}: block {kinds.index('moe')} is a mixture of plain experts, which nothing here computes; "
            "serve a Nemotron-H without experts"
        )
    if any(kind == "mlp" == before for kind, before in zip(kinds, ("mlp", *kinds))):
        raise fields.wrong(name, "blocks of which each MLP follows a mixer")
    return kinds


def _mamba(fields: Fields) -> Mamba2:
    bias = fields.flag("use_bias", False)
    groups = fields.whole("n_groups", 1, MAX_HEADS, 8)
    return Mamba2(
        num_heads=fields.whole("mamba_num_heads", 1, MAX_HEADS),
        head_dim=fields.whole("mamba_head_dim", 1, MAX_HEAD_DIM),
        state_size=fields.whole("ssm_state_size", 1, MAX_HEAD_DIM),
        num_groups=groups,
        width=fields.whole("conv_kernel", 2, 64, 4),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=bias,
        out_bias=bias,
        min_step=fields.number("time_step_min", 0.0, 1e9, 0.001),
        norm_groups=groups,
    )


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    prefix = naming.find_prefix(names, "embeddings.weight", ("backbone.", "model."))
    found = naming.recipes_of(spec, naming.prefixed(_NAMES, prefix))
    number = 0
    for index, layer in enumerate(spec.layers):
        for block in (_MIXER, _MLP) if layer.mlp != NO_MLP else (_MIXER,):
            found |= naming.layer_recipes(spec, layer, f"layers.{index}.", f"{prefix}layers.{number}.", block)
            number += 1
    return found
