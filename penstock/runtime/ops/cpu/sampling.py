"""Drawing on a CPU, where sorting a whole vocabulary would take longer than the model.

Weights stand in [0, 1], the likeliest token's at 1. The first half of their bits sorts them into buckets; counts and masses of
the buckets tell in which one top_k or top_p ends, and only that one is sorted.
"""

import torch
from torch import Tensor

from penstock.runtime.ops.sampling.draw import SamplingTensors, draw, likeliest, scale

LAST_BUCKET = 0x3F80
"""First half of the bits of 1.0."""
RUN = 256
"""Weights summed before the run that holds the drawn token is looked at one by one."""


def _is_large(logits: Tensor, sampling: SamplingTensors) -> bool:
    """A small vocabulary is sorted sooner than put into buckets."""
    return logits.shape[1] >= 1024


@likeliest.kernel("cpu", fits=lambda logits: logits.shape[1] >= 1024)
def likeliest_by_runs(logits: Tensor) -> Tensor:
    """Largest numbers are found many at a time, places one at a time: first the run, then the place in it."""
    size = logits.shape[1]
    whole = size // RUN * RUN
    peaks = logits[:, :whole].reshape(len(logits), -1, RUN).amax(-1)
    if whole < size:
        peaks = torch.cat((peaks, logits[:, whole:].amax(-1, keepdim=True)), dim=1)
    start = peaks.argmax(-1, keepdim=True) * RUN
    places = (start + torch.arange(RUN)).clamp_(max=size - 1)
    return start[:, 0] + logits.gather(1, places).argmax(-1)


@draw.kernel("cpu", fits=_is_large)
def draw_by_buckets(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    is_greedy = sampling.temperature == 0
    if bool(is_greedy.all()):
        return likeliest(logits)
    if not bool(is_greedy.any()):
        return _draw(logits, sampling)
    drawn = torch.empty(len(logits), dtype=torch.int64)
    drawn[is_greedy] = likeliest(logits[is_greedy])
    drawn[~is_greedy] = _draw(logits[~is_greedy], SamplingTensors(*(column[~is_greedy] for column in sampling)))
    return drawn


def _draw(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    weights = scale(logits, sampling.temperature).exp_()
    least = sampling.min_p.clone()
    is_limited = (sampling.top_k > 0) | (sampling.top_p < 1)
    for row in is_limited.nonzero()[:, 0].tolist():
        kept = _least_kept(weights[row], int(sampling.top_k[row]), float(sampling.top_p[row]))
        least[row] = torch.maximum(least[row], kept)
    if bool((least > 0).any()):
        weights.masked_fill_(weights < least[:, None], 0.0)
    return _invert(weights, sampling.uniform)


def _least_kept(weights: Tensor, top_k: int, top_p: float) -> Tensor:
    """The lowest weight that top_k, then top_p of what top_k left, keep."""
    buckets = (weights.view(torch.int32) >> 16).clamp_(0, LAST_BUCKET)
    # Likeliest first from here on.
    masses = torch.bincount(buckets, weights, minlength=LAST_BUCKET + 1).flip(0)
    gathered = masses.cumsum(0)
    total, least = gathered[-1], weights.new_zeros(())
    if 0 < top_k < len(weights):
        counts = torch.bincount(buckets, minlength=LAST_BUCKET + 1).flip(0)
        counted = counts.cumsum(0)
        place = int(torch.searchsorted(counted, top_k))
        inside = _sorted_bucket(weights, buckets, place)
        least = inside[top_k - int(counted[place] - counts[place]) - 1]
        total = gathered[place] - masses[place] + inside[inside >= least].sum(dtype=torch.float64)
    if top_p < 1:
        target = top_p * total
        place = min(int(torch.searchsorted(gathered, target)), LAST_BUCKET)
        inside = _sorted_bucket(weights, buckets, place)
        within = gathered[place] - masses[place] + inside.cumsum(0, dtype=torch.float64)
        last = min(int(torch.searchsorted(within, target)), len(inside) - 1)
        least = torch.maximum(least, inside[last]) if last >= 0 else least
    return least


def _sorted_bucket(weights: Tensor, buckets: Tensor, place: int) -> Tensor:
    return weights[buckets == LAST_BUCKET - place].sort(descending=True).values


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """As `sampling.invert`, run by run: first the run whose sum passes the target, then the token within it."""
    num_rows, size = weights.shape
    whole = size // RUN * RUN
    runs = weights[:, :whole].view(num_rows, -1, RUN).sum(-1, dtype=torch.float64)
    runs = torch.cat((runs, weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)), dim=1).cumsum(-1)
    target = uniform * runs[:, -1]
    run = torch.searchsorted(runs, target[:, None], right=True).clamp_(max=runs.shape[1] - 1)
    before = torch.where(run > 0, runs.gather(1, (run - 1).clamp(min=0)), 0.0)
    places = run * RUN + torch.arange(RUN)
    inside = weights.gather(1, places.clamp(max=size - 1)).double().masked_fill_(places >= size, 0.0)
    sums = before + inside.cumsum(-1)
    # Rounding may leave the target just past the run's last weight: the last token that may be drawn takes it.
    last = torch.where(inside > 0, torch.arange(RUN), -1).amax(-1, keepdim=True)
    within = torch.minimum(torch.searchsorted(sums, target[:, None], right=True), last)
    return (run * RUN + within)[:, 0]
