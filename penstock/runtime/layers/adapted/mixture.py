"""A mixture whose experts adapters may change."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.models.spec import MoE
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.moe import Experts, mix_experts


class ExpertChange(NamedTuple):
    """Of one adapter: [experts, rows, rank] and [experts, rank, columns], for each part of gate_up and for down."""

    gate_up: tuple[tuple[Tensor, Tensor] | None, ...]
    down: tuple[Tensor, Tensor] | None


class LoraExperts:
    """In place of `mix_experts`, over experts that adapters may change: tokens of such adapters are computed expert by expert,
    the others as ever."""

    def __init__(self, mixture: MixtureOfExperts, step: AdapterStep) -> None:
        self.like = mixture.experts.down.weight
        """[experts, hidden, width]"""
        self.step = step
        self.changes: dict[int, ExpertChange] = {}
        mixture.mix = self

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> Tensor:
        tokens = self.step.tokens
        if tokens is None or not self.changes:
            return mix_experts(x, weights, chosen, experts, spec)
        slots = tokens.slots
        is_adapted = torch.isin(slots, torch.tensor(list(self.changes), device=slots.device, dtype=slots.dtype))
        mixed = torch.empty_like(x)
        rest = torch.where(~is_adapted)[0]
        if len(rest):
            mixed[rest] = mix_experts(x[rest], weights[rest], chosen[rest], experts, spec)
        for slot, change in self.changes.items():
            at = torch.where(slots == slot)[0]
            if len(at):
                mixed[at] = _adapted(x[at], weights[at], chosen[at], experts, spec, change)
        return mixed


def _adapted(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE, change: ExpertChange) -> Tensor:
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
