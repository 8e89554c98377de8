"""A stage of a pipeline where a whole decoder would stand: takes hidden states over, computes its layers, passes them on."""

from collections.abc import Iterator

import torch
from torch import Tensor

from penstock.runtime.execution.parallel.world import World
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.parallel import StageInput
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import ModelSpec


class StagedDecoder:
    def __init__(self, model: Decoder, world: World) -> None:
        self._model = model
        self._world = world

    @property
    def model(self) -> Decoder:
        return self._model

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def cache_dtype(self) -> torch.dtype:
        return self._model.cache_dtype

    def parameters(self) -> Iterator[Tensor]:
        return self._model.parameters()

    def __call__(self, token_ids: Tensor, step: Step) -> Tensor:
        """The last stage's are the final hidden states; others' are what it was given."""
        place, model = self._world.place, self._model
        if isinstance(model.embedding, StageInput):
            shape = (len(token_ids), model.spec.hidden_size)
            model.embedding.received = self._world.recv(shape, model.embedding.dtype)
        hidden: Tensor = model(token_ids, step)
        if not place.is_last_stage:
            self._world.send(hidden)
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        return self._model.scores(hidden)
