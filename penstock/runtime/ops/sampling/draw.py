"""Drawing tokens: random numbers that depend on nothing but their key, penalties, and the draw itself.

A draw inverts the distribution's cumulative sum, taken in the order of token ids, at one uniform number. So it is a pure
function of the scores, the sampling tensors and the key (seed, choice, position): the same in any batch and on any device.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.ops.op import operation


class SamplingTensors(NamedTuple):
    """How each row of scores is drawn from, [rows] each."""

    temperature: Tensor
    """0 takes the likeliest."""
    top_k: Tensor
    """0 keeps all."""
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor
    """In [0, 1), float64: the one random number of the draw."""


class Penalties(NamedTuple):
    """[rows] each. `repetition` counts prompt and answer, the others the answer alone."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor


def uniform(seed: Tensor, choice: Tensor, position: Tensor) -> Tensor:
    """Numbers in [0, 1) from int64 keys: three rounds of a 64-bit mixer, 53 bits kept."""
    state = _mix(seed + _GOLDEN)
    state = _mix(state ^ (choice + _GOLDEN))
    state = _mix(state ^ (position + _GOLDEN))
    return (_shifted(state, 11)).double() * 2.0**-53


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _mix(state: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the state; products wrap around."""
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shifted right as if unsigned."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


@operation
def penalize(logits: Tensor, history: Tensor, prompt_lengths: Tensor, lengths: Tensor, penalties: Penalties) -> None:
    """Lowers, in place, the scores of tokens seen before: history [rows, longest], of which `lengths` are tokens.

    Repeated tokens read and write the same score, so writing it several times is writing it once; padding stands on a
    token that is there.
    """
    place = torch.arange(history.shape[1], device=logits.device)[None, :]
    is_token = place < lengths[:, None]
    is_drawn = is_token & (place >= prompt_lengths[:, None])
    ids = history.long()
    ids = torch.where(is_token, ids, ids[:, :1])
    scores, repetition = logits.gather(1, ids), penalties.repetition[:, None]
    logits.scatter_(1, ids, torch.where(scores > 0, scores / repetition, scores * repetition))

    ids = torch.where(is_drawn, ids, ids.gather(1, lengths[:, None] - 1))
    presence = (penalties.presence * is_drawn.any(1))[:, None]
    logits.scatter_(1, ids, logits.gather(1, ids) - presence)
    logits.scatter_add_(1, ids, -penalties.frequency[:, None] * is_drawn)


@operation
def likeliest(logits: Tensor) -> Tensor:
    """The first of the largest scores of each row."""
    return logits.argmax(-1)


@operation
def draw(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    """One token id for each row of scores [rows, vocabulary]."""
    scaled = scale(logits, sampling.temperature)
    least = torch.maximum(
        least_by_rank(scaled.sort(-1, descending=True).values, sampling), least_by_share(scaled, sampling)
    )
    drawn = invert(scaled, least, sampling.uniform)
    return torch.where(sampling.temperature == 0, logits.argmax(-1), drawn)


def scale(logits: Tensor, temperature: Tensor) -> Tensor:
    """Scores over temperature, the highest at zero. It is taken off first: a tiny temperature then overflows to -inf only."""
    below = logits - logits.amax(-1, keepdim=True)
    return below.div_(torch.where(temperature == 0, 1.0, temperature)[:, None])


def least_by_share(scaled: Tensor, sampling: SamplingTensors) -> Tensor:
    """min_p: the lowest score kept is that share of the highest, which stands at zero."""
    return sampling.min_p.log()


def least_by_rank(ordered: Tensor, sampling: SamplingTensors) -> Tensor:
    """The lowest score that top_k, then top_p of what top_k left, keep; scores equal to it are kept too."""
    last = ordered.shape[1] - 1
    by_count = torch.where(sampling.top_k == 0, last, (sampling.top_k - 1).clamp(max=last))
    least = ordered.gather(1, by_count[:, None])
    shares = torch.where(ordered >= least, ordered, -torch.inf).softmax(-1)
    return torch.maximum(least[:, 0], least_by_mass(ordered, shares, sampling.top_p))


def least_by_mass(ordered: Tensor, shares: Tensor, top_p: Tensor) -> Tensor:
    """The last score before which the likelier ones have not yet gathered top_p."""
    before = shares.cumsum(-1) - shares
    num_kept = ((before < top_p[:, None]) & (shares > 0)).sum(-1).clamp(min=1)
    by_mass = ordered.gather(1, (num_kept - 1)[:, None])[:, 0]
    return torch.where(top_p >= 1, -torch.inf, by_mass)


def invert(scaled: Tensor, least: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative sum of what is kept passes `uniform` of its total."""
    sums = torch.where(scaled >= least[:, None], scaled, -torch.inf).exp_().cumsum(-1)
    total = sums[:, -1]
    # Below the total even after rounding, so that the token found is one that is kept.
    target = torch.minimum((uniform * total).to(sums.dtype), torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target[:, None], right=True)[:, 0]
