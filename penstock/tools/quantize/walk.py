"""A model walked through layer by layer: of its weights one layer is in memory at a time, of the calibration text the
hidden states between two layers.

Knows layers and how they are filled; what is done with a layer is the caller's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.load.parameters import fill_parameter
from penstock.runtime.formats.checkpoint import Checkpoint
from penstock.runtime.layers.build import build_model
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.models.weights import Recipes
from penstock.runtime.ops.layout import BatchLayout

BLOCK_SIZE = 16
TOKENS_AT_ONCE = 4096
TokenRows = Tensor
"""[sequences, tokens]."""


@dataclass(frozen=True, slots=True)
class Original:
    """A model as it lies on disk, and the device it is walked through on."""

    spec: ModelSpec
    recipes: Recipes
    checkpoint: Checkpoint
    device: torch.device

    def ends(self, *filled: str) -> Decoder:
        """All but the layers: embedding, norms and output matrix; with numbers in those whose names begin so."""
        ends = _decoder(replace(self.spec, layers=self.spec.layers[:1]))
        for name, _ in list(ends.named_parameters()):
            if name.startswith(filled):
                self.fill(ends, name, name)
        return ends

    def fill(self, model: nn.Module, ours: str, theirs: str) -> Tensor:
        """One parameter `ours` of a module, read by the model's recipe for `theirs`."""
        return fill_parameter(model, ours, self.recipes[theirs], self.checkpoint, self.device)

    def parameter(self, name: str) -> Tensor:
        """A parameter that stands in no layer."""
        return self.fill(self.ends(), name, name)

    def head(self) -> Decoder:
        """What makes predictions of the last hidden states, with numbers."""
        return self.ends("norm", "output", *(["embedding."] if self.spec.tied_embedding else []))

    def layer_shape(self, number: int) -> nn.Module:
        """A layer without numbers."""
        return _decoder(replace(self.spec, layers=(self.spec.layers[number],))).layers[0]

    def layer(self, number: int) -> Decoder:
        """A model of one layer, with numbers in that layer alone; they may be written."""
        model = _decoder(replace(self.spec, layers=(self.spec.layers[number],)))
        for name, _ in list(model.layers[0].named_parameters()):
            parameter = self.fill(model, f"layers.0.{name}", f"layers.{number}.{name}")
            parameter.data = parameter.data.clone()  # they may lie in the mapped file
        return model


def _decoder(spec: ModelSpec) -> Decoder:
    model = build_model(spec, torch.float32)
    if not isinstance(model, Decoder):
        raise ConfigError("a model that makes vectors is small already; quantize one that generates")
    return model


class LayerWalk:
    """Sequences of equal length, as the hidden states that the next layer reads."""

    def __init__(self, source: Original, token_ids: Tensor) -> None:
        self._source = source
        self.tokens = token_ids
        self.states = torch.empty(0)
        length = token_ids.shape[1]
        self._at_once = max(1, TOKENS_AT_ONCE // length)
        self._cache: KVCache | None = None

    @torch.inference_mode()
    def begin(self) -> None:
        """States before the first layer."""
        source = self._source
        ends = source.ends("embedding", "positions", "token_types")
        ids = self.tokens.to(source.device)
        states = ends.embedding(ids.flatten()).view(*ids.shape, -1).float()
        if ends.positions is not None:
            states = states + ends.positions(torch.arange(ids.shape[1], device=source.device))
        self.states = ends.embedding_norm(states)

    @torch.inference_mode()
    def run(self, model: Decoder, keep: bool = True) -> None:
        """All sequences through a model of one layer. With `keep` their states are those behind it from then on."""
        layer = model.layers[0]
        for first in range(0, len(self.states), self._at_once):
            part = self.states[first : first + self._at_once]
            stream = part.reshape(-1, part.shape[-1]).clone()
            x, stream = layer(None, stream, self._step(model.spec, part.shape[0], part.shape[1]))
            if keep:
                self.states[first : first + self._at_once] = (stream if x is None else stream + x).view(part.shape)

    def _step(self, spec: ModelSpec, count: int, length: int) -> Step:
        device = self._source.device
        blocks = -(-length // BLOCK_SIZE)
        self._cache = KVCache(spec, blocks * count, BLOCK_SIZE, torch.float32, device)
        tables = torch.arange(blocks * count, device=device).view(count, blocks)
        place = torch.arange(length, device=device)
        slots = tables[:, place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
        positions = place.repeat(count)
        layout = BatchLayout(
            positions=positions,
            slots=slots.flatten(),
            block_tables=tables.int(),
            query_starts=torch.arange(count + 1, device=device, dtype=torch.int32) * length,
            context_lengths=torch.full((count,), length, dtype=torch.int32, device=device),
            lengths=[length] * count,
            contexts=[length] * count,
        )
        return Step(layout, Rotations(spec, length, device).at(positions), self._cache.layers)


def cut(token_ids: Sequence[int], length: int, count: int) -> TokenRows:
    """Sequences from all over a text, [count, length]."""
    if len(token_ids) < length:
        raise ModelFileError(f"the calibration text has {len(token_ids):,} tokens; it needs at least {length:,}")
    count = min(count, len(token_ids) // length)
    starts = torch.linspace(0, len(token_ids) - length, count).long()
    ids = torch.tensor(token_ids)
    return torch.stack([ids[start : start + length] for start in starts.tolist()])
