"""A mixture of experts: which experts are chosen for a token, and the weighted sum of their outputs."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.spec import MoE
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.op import operation


class Experts(NamedTuple):
    """All experts: gate_up [experts, 2 * width, hidden], down [experts, hidden, width], and biases without the last axis."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


@operation
def route(scores: Tensor, spec: MoE) -> tuple[Tensor, Tensor]:
    """Weights and numbers [tokens, num_active] of the experts chosen by router scores [tokens, experts]."""
    weights, chosen = torch.softmax(scores.float(), dim=-1).topk(spec.num_active, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if spec.normalize else weights, chosen


@operation
def route_by_groups(scores: Tensor, offsets: Tensor | None, spec: MoE) -> tuple[Tensor, Tensor]:
    """As `route`, from the best groups of experts alone. Offsets, which sigmoid scores have, are seen by the choice only; a
    group is then as good as its two best, else as its best."""
    is_sigmoid = spec.scores == "sigmoid"
    likely = scores.float().sigmoid() if is_sigmoid else torch.softmax(scores.float(), dim=-1)
    choice = likely if offsets is None else likely + offsets
    if spec.num_groups > 1:
        groups = choice.view(len(choice), spec.num_groups, -1)
        quality = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1) if is_sigmoid else groups.amax(-1)
        best = torch.zeros_like(quality).scatter_(-1, quality.topk(spec.num_active_groups, dim=-1).indices, 1.0)
        choice = (groups * best.unsqueeze(-1)).flatten(-2)
    chosen = choice.topk(spec.num_active, dim=-1).indices
    weights = likely.gather(-1, chosen)
    if spec.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * spec.scale, chosen


class Groups(NamedTuple):
    """Pairs of a token and an expert chosen for it, by expert. Pair p belongs to token p // num_active.

    expert 0       expert 2                  expert 5
    | tile | tile  | tile | tile | tile      | tile ...
     ------ ---     ------ ------ -           ----      places taken
    """

    order: Tensor
    """int32 [pairs]: pairs in the order of their experts, no gaps."""
    tiles: Tensor
    """int32 [slots, 3]: expert, first place and end in `order`; (-1, 0, 0) where there is no tile.

    An expert's first slot is the first place of its pairs // tile + its own number: it can be told from counts alone.
    """


@operation
def group_pairs(chosen: Tensor, num_experts: int, tile: int) -> Groups:
    """Experts chosen [tokens, num_active], as runs of up to `tile` pairs of one expert."""
    counts = torch.bincount(chosen.flatten(), minlength=num_experts)
    tiles = torch.tensor([[-1, 0, 0]] * max_tiles(chosen.numel(), num_experts, tile), dtype=torch.int32)
    for expert, (end, count) in enumerate(zip(counts.cumsum(0).tolist(), counts.tolist())):
        for number, start in enumerate(range(end - count, end, tile)):
            slot = (end - count) // tile + expert + number
            tiles[slot] = torch.tensor([expert, start, min(start + tile, end)])
    order = torch.sort(chosen.flatten(), stable=True).indices.int()
    return Groups(order, tiles.to(chosen.device))


def max_tiles(num_pairs: int, num_experts: int, tile: int) -> int:
    """Slots there are: every expert may leave one tile unfilled."""
    return num_pairs // tile + num_experts


@operation
def mix_experts(x: Tensor, weights: Tensor, chosen: Tensor, experts: Experts, spec: MoE) -> Tensor:
    """The weighted sum of the chosen experts' outputs for each token of x [tokens, hidden]; experts of weight 0 are not
    computed."""
    mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number in torch.unique(chosen).tolist():
        tokens, places = torch.where((chosen == number) & (weights != 0))
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
