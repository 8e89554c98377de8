"""An embedding or an output matrix that adapters change, or bring one of their own for."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.runtime.layers.adapted.step import AdapterStep


class LoraTable(nn.Module):
    """An embedding, an output matrix, or a matrix that is both. Adapters change what is looked up, and scores, or bring a
    matrix of their own. Slots are looked through one by one: few adapters do this."""

    def __init__(self, table: nn.Module, step: AdapterStep) -> None:
        super().__init__()
        self.table = table
        self.step = step
        self.lookups: dict[int, tuple[Tensor, Tensor]] = {}
        """[tokens, rank] and [rank, hidden] of slots that change the embedding."""
        self.outputs: dict[int, tuple[Tensor, Tensor]] = {}
        """[tokens, rank] and [rank, hidden] of slots that change the output matrix."""
        self.embeddings: dict[int, Tensor] = {}
        self.heads: dict[int, Tensor] = {}
        self.factors: dict[int, Tensor] = {}
        self.squares: Tensor | None = None
        """Of the lengths of the matrix's own rows, once a DoRA has asked for them."""

    @property
    def device(self) -> torch.device:
        return self.table.device  # type: ignore[return-value]

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype  # type: ignore[return-value]

    def forget(self, slot: int) -> None:
        for pairs in (self.lookups, self.outputs):
            pairs.pop(slot, None)
        for tensors in (self.embeddings, self.heads, self.factors):
            tensors.pop(slot, None)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        tokens = self.step.tokens
        if tokens is None or not (self.lookups or self.embeddings):
            return found
        scale = getattr(self.table, "scale", 1.0)
        for slot in self.lookups.keys() | self.embeddings.keys():
            at = torch.where(tokens.slots == slot)[0]
            if slot in self.embeddings:
                found[at] = functional.embedding(ids[at], self.embeddings[slot]).to(found.dtype) * scale
            if slot in self.lookups:
                left, right = self.lookups[slot]
                found[at] += ((left[ids[at]].float() @ right.float()) * scale).to(found.dtype)
        return found

    def scores(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.table.scores(hidden)  # type: ignore[operator]
        tokens = self.step.tokens
        if tokens is None:
            return scores
        for slot in self.outputs.keys() | self.heads.keys():
            at = torch.where(tokens.slots == slot)[0]
            if not len(at):
                continue
            if slot in self.heads:
                scores[at] = functional.linear(hidden[at].to(self.heads[slot].dtype), self.heads[slot]).to(scores.dtype)
            if slot in self.factors:
                scores[at] *= self.factors[slot].to(scores.dtype)
            if slot in self.outputs:
                left, right = self.outputs[slot]
                scores[at] += ((hidden[at].float() @ right.float().t()) @ left.float().t()).to(scores.dtype)
        return scores
