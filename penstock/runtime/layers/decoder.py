"""A model that generates: a trunk and an output matrix over the vocabulary."""

import torch
from torch import Tensor

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.trunk import Trunk, TrunkParts
from penstock.runtime.models.spec import ModelSpec


class Decoder(Trunk):
    """Without an output matrix of its own the embedding matrix serves as one."""

    def __init__(self, spec: ModelSpec, parts: TrunkParts, output: Linear | None) -> None:
        super().__init__(spec, parts)
        self.output = output

    def scores(self, hidden: Tensor) -> Tensor:
        """Over the vocabulary for some hidden states, as wide as the product leaves them. Ask for few at a time."""
        matrix = self.embedding if self.output is None else self.output
        scores = matrix.scores(hidden)
        if self.spec.logit_scale != 1.0:
            scores = scores * self.spec.logit_scale
        most = self.spec.logit_softcap
        return scores if most is None else most * torch.tanh(scores.float() / most)

    def logits(self, hidden: Tensor) -> Tensor:
        """The same in float32."""
        return self.scores(hidden).float()
