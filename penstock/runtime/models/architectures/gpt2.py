"""GPT-2: learned positions, layer norms with biases everywhere, matrices stored input first."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.shape import (
    MAX_HIDDEN,
    MAX_POSITIONS,
    DecoderShape,
    SizeNames,
    activation,
    read_shape,
)
from penstock.runtime.models.spec import Activation, Layer, ModelSpec, Norm, PlainMLP
from penstock.runtime.models.weights import Recipe, Recipes, Swap, Tensor

gguf_recipes = naming.gguf_recipes
_SIZES = SizeNames("n_embd", "n_layer", "n_head", "n_head", "n_embd_head", "n_inner", "vocab_size", "n_positions")
_GPT2 = {
    "embedding": "wte",
    "positions": "wpe",
    "norm": "ln_f",
    "output": "lm_head",
    "layers": "h.{}.",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    fields.expect("scale_attn_weights", True)
    fields.expect("add_cross_attention", False)
    fields.whole("n_positions", 1, MAX_POSITIONS)
    norm = Norm("layer", fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5))
    fields = fields.or_else({"n_inner": 4 * fields.whole("n_embd", 1, MAX_HIDDEN)})
    shape = read_shape(fields, _SIZES, norm, tied=fields.flag("tie_word_embeddings", True))
    kind = activation(fields, "activation_function", "gelu_new")
    return _spec(shape, kind, fields.flag("scale_attn_by_inverse_layer_idx", False))


def _spec(shape: DecoderShape, activation: Activation, damped: bool = False) -> ModelSpec:
    """`damped` divides a layer's attention logits by its number, counted from one."""
    attention = replace(shape.attention(None), qkv_bias=True, out_bias=True)
    scales = [attention.scale / (index + 1 if damped else 1) for index in range(shape.num_layers)]
    mlp = PlainMLP(shape.width, activation, bias=True)
    layers = [Layer(replace(attention, scale=scale), mlp) for scale in scales]
    return replace(shape.model("gpt2", layers), learned_positions=shape.context)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    prefix = naming.find_prefix(names, "wte.weight", ("transformer.", ""))

    def found(tensor: Tensor) -> Recipe:
        if tensor.name == "lm_head.weight":
            return tensor
        is_swapped = ".c_" in tensor.name and tensor.name.endswith(".weight")
        return Swap(Tensor(prefix + tensor.name)) if is_swapped else Tensor(prefix + tensor.name)

    return naming.on_all(naming.recipes_of(spec, _GPT2), found)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape("layer")
    head.fields.whole("context_length", 1, MAX_POSITIONS)
    return _spec(shape, "gelu_tanh")
