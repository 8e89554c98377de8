"""The mixture-of-experts sublayer: a router and stacked experts."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.mlp import Gated
from penstock.runtime.layers.parameter import unfilled
from penstock.runtime.models.spec import MoE
from penstock.runtime.ops.moe import Experts, mix_experts, route, route_by_groups

Mix = Callable[[Tensor, Tensor, Tensor, Experts, MoE], Tensor]
"""What chosen experts make of tokens: `mix_experts`, or what stands in for it where experts are dealt out or adapted."""


class StackedExperts(nn.Module):
    """One matrix, and perhaps one bias, for each expert."""

    def __init__(self, num_experts: int, in_size: int, out_size: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = unfilled(num_experts, out_size, in_size, dtype=dtype)
        self.bias = unfilled(num_experts, out_size, dtype=dtype) if bias else None


class ExpertStack(nn.Module):
    def __init__(self, spec: MoE, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        expert = spec.expert
        self.gate_up = StackedExperts(spec.num_experts, hidden_size, 2 * expert.width, expert.bias, dtype)
        self.down = StackedExperts(spec.num_experts, expert.width, hidden_size, expert.bias, dtype)

    def weights(self) -> Experts:
        return Experts(self.gate_up.weight, self.down.weight, self.gate_up.bias, self.down.bias)


class MixtureOfExperts(nn.Module):
    def __init__(self, spec: MoE, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.router = Linear(hidden_size, spec.num_experts, spec.router_bias, dtype)
        self.experts = ExpertStack(spec, hidden_size, dtype)
        self.offsets = unfilled(spec.num_experts, dtype=torch.float32) if spec.scores == "sigmoid" else None
        """A bias that only the choice of experts sees."""
        self.mix: Mix = mix_experts
        self.shared = Gated(spec.shared, hidden_size, dtype) if spec.shared else None
        self.shared_gate = Linear(hidden_size, 1, False, dtype) if spec.shared_gated else None

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        mixed = self.mix(x, weights, chosen, self.experts.weights(), self.spec)
        if self.shared is None:
            return mixed
        beside = self.shared(x)
        if self.shared_gate is not None:
            beside = torch.sigmoid(self.shared_gate(x)) * beside
        return mixed + beside  # type: ignore[no-any-return]

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        if spec.scores == "softmax" and spec.num_groups == 1 and spec.scale == 1.0:
            return route(self.router(x), spec)
        return route_by_groups(self.router(x), self.offsets, spec)
