"""Llama 2 and 3, and the many that share their shape: SmolLM2, TinyLlama, ..."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import activation, shape_from_config
from penstock.runtime.models.spec import GatedMLP, ModelSpec, only_gqa
from penstock.runtime.models.weights import HalvesPaired, Recipe, Recipes, Tensor

_GGUF_NAMES = {**naming.GGUF, "attention.qkv": "attn_q attn_k attn_v"}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    bias = fields.flag("attention_bias", False)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    attention = replace(shape.attention(rope), qkv_bias=bias, out_bias=bias)
    mlp = GatedMLP(shape.width, activation(fields), bias=fields.flag("mlp_bias", False))
    return shape.alike("llama", attention, mlp)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    prefix = naming.find_prefix(names, "embed_tokens.weight", ("model.", ""))
    return naming.recipes_of(spec, naming.prefixed(naming.HF, prefix))


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(
        shape.attention(head.rope(shape)),
        qkv_bias="blk.0.attn_q.bias" in head.names,
        out_bias="blk.0.attn_output.bias" in head.names,
    )
    return shape.alike("llama", attention, head.gated_mlp(shape))


def gguf_recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    """Rows of q and k are stored in pairs for interleaved RoPE."""
    attention = only_gqa(spec.layers[0].attention, "read from GGUF")
    num_heads = {"attn_q": attention.num_heads, "attn_k": attention.num_kv_heads}

    def paired(tensor: Tensor) -> Recipe:
        count = num_heads.get(tensor.name.split(".")[-2])
        return tensor if count is None else HalvesPaired(tensor, count)

    return naming.on_all(naming.recipes_of(spec, _GGUF_NAMES, names), paired)
