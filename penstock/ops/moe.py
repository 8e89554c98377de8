"""A mixture of experts: who is chosen for a token, and what the chosen make of it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.models.spec import GatedMLP, MoE
from penstock.ops.activation import gate
from penstock.ops.op import operation


class Experts(NamedTuple):
    """All experts: gate_up [experts, 2 * width, hidden], down [experts, hidden, width], and biases without the last axis."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


def _route_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(10)
    for normalize in (False, True):
        spec = MoE(8, 3, GatedMLP(16, "silu"), normalize)
        yield torch.randn((9, 8), generator=generator, device=device), spec


@operation(_route_examples)
def route(scores: Tensor, spec: MoE) -> tuple[Tensor, Tensor]:
    """Weights and numbers [tokens, num_active] of the experts chosen by router scores [tokens, experts]."""
    weights, chosen = torch.softmax(scores.float(), dim=-1).topk(spec.num_active, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if spec.normalize else weights, chosen


def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator(device).manual_seed(11)
    for dtype in (torch.float32, torch.float16):
        for tokens, has_bias in ((1, False), (7, True), (40, False)):
            spec = MoE(6, 2, GatedMLP(32, "swiglu_clamped" if has_bias else "silu", has_bias), True)

            def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
                return (torch.randn(shape, generator=generator, device=device) * 0.3).to(dtype)

            biases = (normal(6, 64), normal(6, 24)) if has_bias else (None, None)
            weights, chosen = route(torch.randn((tokens, 6), generator=generator, device=device), spec)
            yield normal(tokens, 24), weights, chosen, Experts(normal(6, 64, 24), normal(6, 24, 32), *biases), spec


@operation(_examples)
def mix_experts(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> Tensor:
    """The weighted sum, for each token of x [tokens, hidden], of what its chosen experts make of it."""
    mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number in torch.unique(chosen).tolist():
        tokens, places = torch.where(chosen == number)
        made = functional.linear(
            gate(
                functional.linear(x[tokens], experts.gate_up[number], _row(experts.gate_up_bias, number)),
                spec.expert.activation,
            ),
            experts.down[number],
            _row(experts.down_bias, number),
        )
        mixed.index_add_(0, tokens, made.float() * weights[tokens, places, None])
    return mixed.to(x.dtype)


def _row(bias: Tensor | None, number: int) -> Tensor | None:
    return None if bias is None else bias[number]
