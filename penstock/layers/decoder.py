"""A model that generates: a trunk and an output matrix over the vocabulary."""

from torch import Tensor

from penstock.layers.linear import Linear
from penstock.layers.trunk import Parts, Trunk
from penstock.models.spec import ModelSpec


class Decoder(Trunk):
    """Without an output matrix of its own the embedding matrix serves as one."""

    def __init__(self, spec: ModelSpec, parts: Parts, output: Linear | None) -> None:
        super().__init__(spec, parts)
        self.output = output

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 scores over the vocabulary for some hidden states. Ask for few at a time: the result is wide."""
        matrix = self.embedding if self.output is None else self.output
        return matrix.logits(hidden, self.spec.logit_softcap)
