"""What decoders and encoders share: from token ids through all layers to the final hidden states."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.runtime.layers.embedding import Embedding
from penstock.runtime.layers.layer import AnyLayer
from penstock.runtime.layers.norm import AnyNorm
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class TrunkParts:
    """Modules a trunk is put together from."""

    embedding: Embedding
    positions: Embedding | None
    token_types: Embedding | None
    embedding_norm: AnyNorm
    layers: list[AnyLayer]
    norm: AnyNorm


class Trunk(nn.Module):
    def __init__(self, spec: ModelSpec, parts: TrunkParts) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = parts.embedding
        self.positions = parts.positions
        self.token_types = parts.token_types
        self.embedding_norm = parts.embedding_norm
        self.layers = nn.ModuleList(parts.layers)
        self.norm = parts.norm

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def cache_dtype(self) -> torch.dtype:
        """The numbers keys and values are kept in."""
        return self.embedding.dtype

    def forward(self, token_ids: Tensor, step: Step) -> Tensor:
        """Final hidden states [tokens, hidden]."""
        stream = self.embedding(token_ids)
        if self.positions is not None:
            stream += self.positions(step.layout.positions)
        if self.token_types is not None:
            stream += self.token_types.weight[0]  # every text is of the first type
        stream = self.embedding_norm(stream)
        x = None
        for layer in self.layers:
            x, stream = layer(x, stream, step)
        return self.norm(stream) if x is None else self.norm.add(x, stream)
