"""Drawing on a CPU, where sorting a whole vocabulary would take longer than the model: only the top of it is."""

import torch
from torch import Tensor

from penstock.ops.sampling import Wishes, draw, invert, least_by_mass, least_by_rank, least_by_share, scale

NUM_CANDIDATES = 512
"""Scores sorted before it is known whether more are needed."""


@draw.kernel("cpu")
def draw_from_top(logits: Tensor, wishes: Wishes) -> Tensor:
    drawn = logits.argmax(-1)
    rows = (wishes.temperature > 0).nonzero()[:, 0]
    if len(rows):
        wishes = Wishes(*(column[rows] for column in wishes))
        scaled = scale(logits if len(rows) == len(logits) else logits[rows], wishes.temperature)
        least = torch.maximum(_least_by_rank(scaled, wishes), least_by_share(scaled, wishes))
        drawn[rows] = invert(scaled, least, wishes.uniform)
    return drawn


def _least_by_rank(scaled: Tensor, wishes: Wishes) -> Tensor:
    """Row by row from the candidates where they suffice, else from all scores; a row's way depends on that row alone."""
    vocab_size = scaled.shape[1]
    least = scaled.new_full((len(scaled),), -torch.inf)
    is_limited = (wishes.top_k > 0) | (wishes.top_p < 1)
    few = (is_limited & (wishes.top_k < NUM_CANDIDATES)).nonzero()[:, 0]
    wide = is_limited & (wishes.top_k >= NUM_CANDIDATES)
    if len(few):
        chosen = Wishes(*(column[few] for column in wishes))
        candidates = scaled[few].topk(min(NUM_CANDIDATES, vocab_size)).values
        by_count = candidates.gather(1, (chosen.top_k - 1).clamp(0, candidates.shape[1] - 1)[:, None])[:, 0]
        by_count = torch.where(chosen.top_k == 0, -torch.inf, by_count)
        kept = torch.where(scaled[few] >= by_count[:, None], scaled[few], -torch.inf)
        shares = (candidates - kept.logsumexp(-1, keepdim=True)).exp()
        shares = torch.where(candidates >= by_count[:, None], shares, 0.0)
        least[few] = torch.maximum(by_count, least_by_mass(candidates, shares, chosen.top_p))
        is_short = (shares.sum(-1) < chosen.top_p) & (chosen.top_k == 0) & (chosen.top_p < 1)
        wide[few[is_short]] = vocab_size > NUM_CANDIDATES
    rest = wide.nonzero()[:, 0]
    if len(rest):
        ordered = scaled[rest].sort(-1, descending=True).values
        least[rest] = least_by_rank(ordered, Wishes(*(column[rest] for column in wishes)))
    return least
