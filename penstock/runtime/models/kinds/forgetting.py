"""A model whose layers that see all forget instead."""

from dataclasses import replace
from typing import Literal

from penstock.errors import ConfigError
from penstock.runtime.models.kinds.bounded import Bounded
from penstock.runtime.models.spec import GQA, Layer, ModelSpec


def bounded(
    spec: ModelSpec, keeps: Literal["first", "heaviest"], num_kept: int, num_recent: int, context: int = 0
) -> ModelSpec:
    """Every layer of full attention keeps so much of a text; texts may be as long as `context`."""
    full = [layer.attention for layer in spec.layers if isinstance(layer.attention, GQA) and not layer.attention.window]
    if spec.learned_positions:
        raise ConfigError(f"--long-context counts places anew, and those of {spec.architecture} are learned")
    if not full or not spec.generates:
        raise ConfigError(f"--long-context is for layers that see all that was said, and {spec.architecture} has none")
    if any(attention.sinks for attention in full):
        raise ConfigError(
            f"--long-context leaves learned sinks out, and {spec.architecture} has them; serve it in full"
        )

    def forgetting(layer: Layer) -> Layer:
        if not isinstance(layer.attention, GQA) or layer.attention.window:
            return layer
        return replace(layer, attention=Bounded(layer.attention, keeps, num_kept, num_recent))

    layers = tuple(map(forgetting, spec.layers))
    return replace(spec, layers=layers, max_context=max(spec.max_context, context))


def unbounded(spec: ModelSpec) -> ModelSpec:
    """The model as its files have it."""
    layers = (
        replace(layer, attention=layer.attention.attention) if isinstance(layer.attention, Bounded) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))
