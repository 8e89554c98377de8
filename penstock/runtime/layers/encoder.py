"""A model that makes one vector of each text: a trunk whose tokens see both ways, and pooling."""

import torch
from torch import Tensor

from penstock.runtime.layers.step import Step
from penstock.runtime.layers.trunk import Trunk


class Encoder(Trunk):
    def encode(self, token_ids: Tensor, step: Step) -> Tensor:
        """One vector of length 1 for each text, [texts, hidden], in float32."""
        texts = self(token_ids, step).float().split(step.layout.lengths)
        pooled = [text[0] if self.spec.pooling == "cls" else text.mean(0) for text in texts]
        return torch.nn.functional.normalize(torch.stack(pooled), dim=-1)
