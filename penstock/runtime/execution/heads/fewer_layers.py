"""A model with some of its layers left out, over the same weights: its own draft model.

Which layers stay is told by a folder's config.json, as `penstock train-draft --kind self` measures them; without one, every
other layer in the middle goes.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ConfigError
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.trunk import TrunkParts
from penstock.runtime.models.spec import ModelSpec

ENDS = 4
"""Layers at either end that always stay, where nothing was measured."""


def kept_layers(spec: ModelSpec, folder: Path | None, fingerprint: str | None) -> tuple[int, ...]:
    if folder is None:
        last = spec.num_layers - ENDS
        return tuple(number for number in range(spec.num_layers) if not ENDS <= number < last or number % 2)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        layers = tuple(int(number) for number in config["layers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} tells no layers to keep ({error}); make it with penstock train-draft --kind self"
        ) from error
    if config.get("target_fingerprint") != fingerprint:
        name = config.get("target_name", "another model")
        raise ConfigError(
            f"the layers in {folder} were chosen for {name}; choose anew with penstock train-draft --kind self"
        )
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < spec.num_layers:
        raise ConfigError(f"{folder} keeps layers {list(layers)} of a model that has {spec.num_layers}")
    return layers


def with_layers(model: NativeDecoder | Decoder, layers: Sequence[int]) -> NativeDecoder | Decoder:
    """The model with those layers only. What it computes is its own, what it is made of is the model's."""
    if isinstance(model, NativeDecoder):
        return model.with_layers(layers)
    kept = [layer for number, layer in enumerate(model.layers) if number in set(layers)]
    parts = TrunkParts(model.embedding, model.positions, model.token_types, model.embedding_norm, kept, model.norm)  # type: ignore[arg-type]
    return Decoder(model.spec, parts, model.output)  # each layer finds its own cache among all layers'
