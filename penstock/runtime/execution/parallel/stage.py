"""A stage of a pipeline where a whole decoder would stand: takes hidden states over, computes its layers, passes them on."""

from torch import Tensor

from penstock.runtime.execution.parallel.world import World
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.parallel import StageInput
from penstock.runtime.layers.step import Step


class StagedDecoder:
    def __init__(self, model: Decoder, world: World) -> None:
        self.model = model
        self.spec = model.spec
        self.device, self.cache_dtype = model.device, model.cache_dtype
        self.parameters, self.scores = model.parameters, model.scores
        self._world = world

    def __call__(self, token_ids: Tensor, step: Step) -> Tensor:
        """The last stage's are the final hidden states; others' are what it was given."""
        place, model = self._world.place, self.model
        if isinstance(model.embedding, StageInput):
            shape = (len(token_ids), model.spec.hidden_size)
            model.embedding.received = self._world.recv(shape, model.embedding.dtype)
        hidden: Tensor = model(token_ids, step)
        if not place.is_last_stage:
            self._world.send(hidden)
        return hidden
