"""Llama 4, the text part: experts beside a shared one in all layers or every other, windows of 8,192 in three layers of four.

Described, counted, simulated and planned; its attention chunks and its scaling of queries are not computed here, so loading
weights is refused. A chunk of attention is counted as a window of the same size, which is what it holds at most.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import MAX_LAYERS, MAX_WIDTH, activation, num_experts, shape_from_config
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec, MoE
from penstock.runtime.models.weights import Recipes

NOT_LOADED = (
    "Llama 4 is not computed here yet, so this model cannot be loaded; size it with penstock plan or penstock simulate, "
    "or serve another model"
)
FULL_EVERY = 4
"""Of so many layers the last sees everything and has no positions."""
MAX_WINDOW = 1 << 24


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config.get("text_config", config))
    shape = shape_from_config(fields)
    function = activation(fields)
    count = num_experts(fields, "num_local_experts", shape.num_layers)
    expert = GatedMLP(shape.width, function)
    mixture = MoE(
        num_experts=count,
        num_active=fields.whole("num_experts_per_tok", 1, count, 1),
        expert=expert,
        normalize=False,
        shared=expert,
        scores="sigmoid",
    )
    dense = GatedMLP(fields.whole("intermediate_size_mlp", 1, MAX_WIDTH), function)
    step = fields.whole("interleave_moe_layer_step", 1, MAX_LAYERS, 1)
    window = fields.whole("attention_chunk_size", 1, MAX_WINDOW, 8192)
    near = replace(shape.attention(rope_from_config(fields, shape.head_dim, shape.context)), window=window)
    far = shape.attention(None)
    layers = [
        Layer(far if not (index + 1) % FULL_EVERY else near, dense if (index + 1) % step else mixture)
        for index in range(shape.num_layers)
    ]
    return shape.model("llama4", layers)


def recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    raise ModelFileError(NOT_LOADED)
