"""Qwen 2 and 2.5: Llama's shape with biases on q, k and v, and a window on the upper layers if the config asks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.runtime.models import naming
from penstock.runtime.models.architectures import llama
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.reading.gguf_head import GgufHead
from penstock.runtime.models.reading.positions import rope_from_config
from penstock.runtime.models.reading.shape import (
    MAX_LAYERS,
    activation,
    shape_from_config,
    sliding_layers,
    sliding_window,
)
from penstock.runtime.models.spec import GatedMLP, Layer, ModelSpec

recipes = llama.recipes
gguf_recipes = naming.gguf_recipes


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(config)
    shape = shape_from_config(fields)
    rope = rope_from_config(fields, shape.head_dim, shape.context)
    attention = replace(shape.attention(rope), qkv_bias=True)
    mlp = GatedMLP(shape.width, activation(fields))
    windows = upper_windows(fields, shape.num_layers)
    layers = [Layer(replace(attention, window=window), mlp) for window in windows]
    return shape.model("qwen2", layers)


def upper_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's rule: a window from layer `max_window_layers` on, if `use_sliding_window`."""
    window = sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    first = fields.whole("max_window_layers", 0, MAX_LAYERS, 28)
    has_window = sliding_layers(fields, num_layers, lambda index: index >= first)
    return tuple(window if sliding else None for sliding in has_window)


def spec_from_gguf(head: GgufHead) -> ModelSpec:
    shape = head.shape()
    attention = replace(shape.attention(head.rope(shape)), qkv_bias=True)
    return shape.alike("qwen2", attention, head.gated_mlp(shape))
