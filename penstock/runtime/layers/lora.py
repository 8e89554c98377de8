"""Sublayers whose tokens may each have an adapter. They stand in for the plain ones once a model is loaded.

Adapters lie in numbered slots, 0 being none. Which slot a token has, the step says (`AdapterStep`); in a step without adapters
the plain sublayer computes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.fp8 import Fp8
from penstock.runtime.ops.lora import add_lora
from penstock.runtime.ops.moe import Groups, mix_experts, route


class TokenSlots(NamedTuple):
    """Adapters of some tokens: [tokens] int32, and the tokens in their order."""

    slots: Tensor
    groups: Groups | None
    """What kernels read; none where the definition computes."""


@dataclass(slots=True)
class AdapterStep:
    """What all adapted sublayers of a model are told of a step. `tokens` is None where no token has an adapter."""

    tokens: TokenSlots | None = None


class LoraLinear(nn.Module):
    """`sizes` are the outputs of each of the modules that were joined into the matrix."""

    def __init__(self, linear: nn.Module, sizes: Sequence[int], step: AdapterStep) -> None:
        super().__init__()
        self.linear = linear
        self.sizes = tuple(sizes)
        self.step = step
        self.a: Tensor | None = None
        self.b: Tensor | None = None
        self.factors: Tensor | None = None
        """[adapters, outputs] that the plain product counts times, where one of them is a DoRA."""

    @property
    def bias(self) -> Tensor | None:
        return self.linear.bias  # type: ignore[return-value]

    def forward(self, x: Tensor | Fp8) -> Tensor:
        return self._adapted(self.linear(x), x)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        if self.step.tokens is None or self.a is None:
            return self.linear.gated(x, activation)  # type: ignore[operator, no-any-return]
        return gate(self(x), activation)

    def scores(self, hidden: Tensor) -> Tensor:
        return self._adapted(self.linear.scores(hidden), hidden)  # type: ignore[operator]

    def _adapted(self, y: Tensor, x: Tensor | Fp8) -> Tensor:
        tokens = self.step.tokens
        if tokens is None or self.a is None or self.b is None:
            return y
        if self.factors is not None:
            factors = self.factors[tokens.slots.long()]
            y = y * factors if self.bias is None else (y - self.bias) * factors + self.bias
        floats = (x.values.float() * x.scales[:, None]).to(y.dtype) if isinstance(x, Fp8) else x
        return add_lora(y, floats, tokens.groups, tokens.slots, self.a, self.b, self.sizes)


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

    @property
    def device(self) -> torch.device:
        return self.table.device  # type: ignore[return-value]

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype  # type: ignore[return-value]

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


class ExpertChange(NamedTuple):
    """Of one adapter: [experts, rows, rank] and [experts, rank, columns], for each part of gate_up and for down."""

    gate_up: tuple[tuple[Tensor, Tensor] | None, ...]
    down: tuple[Tensor, Tensor] | None


class LoraMixture(nn.Module):
    """A mixture whose experts may be adapted: tokens of such adapters are computed expert by expert, the others as ever."""

    def __init__(self, mixture: MixtureOfExperts, step: AdapterStep) -> None:
        super().__init__()
        self.mixture = mixture
        self.step = step
        self.changes: dict[int, ExpertChange] = {}

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.step.tokens
        if tokens is None or not self.changes:
            return self.mixture(x)  # type: ignore[no-any-return]
        return self.mix(x, tokens.slots)

    def mix(self, x: Tensor, slots: Tensor) -> Tensor:
        mixture = self.mixture
        weights, chosen = route(mixture.router(x), mixture.spec)
        is_adapted = torch.isin(slots, torch.tensor(list(self.changes), device=slots.device, dtype=slots.dtype))
        mixed = torch.empty_like(x)
        rest = torch.where(~is_adapted)[0]
        if len(rest):
            mixed[rest] = mix_experts(x[rest], weights[rest], chosen[rest], mixture.experts.weights(), mixture.spec)
        for slot, change in self.changes.items():
            at = torch.where(slots == slot)[0]
            if len(at):
                mixed[at] = self._adapted(x[at], weights[at], chosen[at], change)
        return mixed

    def _adapted(self, x: Tensor, weights: Tensor, chosen: Tensor, change: ExpertChange) -> Tensor:
        experts, spec = self.mixture.experts.weights(), self.mixture.spec
        mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for number in torch.unique(chosen).tolist():
            tokens, places = torch.where(chosen == number)
            rows = x[tokens]
            bias = None if experts.gate_up_bias is None else experts.gate_up_bias[number]
            added = [
                torch.zeros((len(rows), spec.expert.width), device=x.device)
                if pair is None
                else _low_rank(rows, pair, number)
                for pair in change.gate_up
            ]
            joined = functional.linear(rows, experts.gate_up[number], bias) + torch.cat(added, 1).to(x.dtype)
            gated = gate(joined, spec.expert.activation)
            bias = None if experts.down_bias is None else experts.down_bias[number]
            made = functional.linear(gated, experts.down[number], bias).float()
            if change.down is not None:
                made += _low_rank(gated, change.down, number)
            mixed.index_add_(0, tokens, made * weights[tokens, places, None])
        return mixed.to(x.dtype)


def _low_rank(x: Tensor, pair: tuple[Tensor, Tensor], number: int) -> Tensor:
    left, right = pair
    return (x.float() @ right[number].float().t()) @ left[number].float().t()
