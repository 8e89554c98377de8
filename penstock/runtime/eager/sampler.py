"""From scores to tokens: each row of scores by the sampling parameters of its sequence, all rows of a step together.

Where a row cannot be drawn from, that row alone says why.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.core.batch import Logprob
from penstock.ops.sampling import Penalties, SamplingTensors, draw, likeliest, penalize, uniform
from penstock.runtime.eager.sampling_state import RowSampling

NOT_FINITE = "the model gave numbers that are not finite for this sequence"
NOTHING_LEFT = "no token may be drawn: allowed tokens, banned tokens and minimum length leave none; loosen one of them"


class Draw(NamedTuple):
    """One token to draw: after `position` of the sequence in `row`."""

    row: int
    position: int
    sampling: RowSampling
    mask: Tensor | None = None
    """Which tokens may be drawn, [vocabulary]."""


class Drawn(NamedTuple):
    token: int
    logprob: Logprob | None = None
    failure: str | None = None


def draw_tokens(logits: Tensor, draws: Sequence[Draw], tokens: Tensor) -> list[Drawn]:
    """One result for each row of scores; the scores are written. `tokens` are those of all rows by position."""
    is_finite = are_finite(logits)
    asked = [index for index, entry in enumerate(draws) if entry.sampling.params.logprobs is not None]
    raw = torch.log_softmax(logits[asked], dim=-1) if asked else None
    can_draw = is_finite
    if any(not entry.sampling.is_plain or entry.mask is not None for entry in draws):
        _adjust(logits, draws, tokens)
        can_draw = is_finite & (logits.amax(-1) > -torch.inf)
    if all(entry.sampling.is_greedy for entry in draws):
        drawn = likeliest(logits)
    else:
        drawn = draw(logits, _sampling(draws, logits.device))
    results = [Drawn(token) for token in drawn.tolist()]
    if raw is not None:
        counts = [draws[index].sampling.params.logprobs or 0 for index in asked]
        chosen = torch.where(can_draw, drawn, 0)[asked]
        for index, logprob in zip(asked, describe_logprobs(raw, chosen, counts)):
            results[index] = results[index]._replace(logprob=logprob)
    if not bool(can_draw.all()):
        for index in (~can_draw).nonzero()[:, 0].tolist():
            results[index] = Drawn(0, failure=NOTHING_LEFT if bool(is_finite[index]) else NOT_FINITE)
    return results


def are_finite(numbers: Tensor) -> Tensor:
    """For each row, whether all its numbers are finite: only then is their sum."""
    return torch.isfinite(numbers.sum(-1, dtype=torch.float32))


def describe_logprobs(raw: Tensor, chosen: Tensor, counts: list[int]) -> list[Logprob]:
    """Log probabilities [rows, vocabulary] in words: of the chosen token, and of the `count` likeliest of each row."""
    values = raw.gather(1, chosen[:, None])[:, 0].tolist()
    top_values, top_ids = raw.topk(min(max(counts), raw.shape[1]), dim=-1)
    tops = zip(top_ids.tolist(), top_values.tolist())
    return [
        Logprob(token, value, tuple(zip(ids[:count], likeliest[:count])))
        for token, value, count, (ids, likeliest) in zip(chosen.tolist(), values, counts, tops)
    ]


def _sampling(draws: Sequence[Draw], device: torch.device) -> SamplingTensors:
    params = [entry.sampling.params for entry in draws]
    keys = [(entry.sampling.params.seed, entry.sampling.choice, entry.position) for entry in draws]
    numbers = torch.tensor([(each.temperature, each.top_p, each.min_p) for each in params], device=device)
    temperature, top_p, min_p = numbers.unbind(1)
    top_k = torch.tensor([each.top_k for each in params], device=device)
    return SamplingTensors(temperature, top_k, top_p, min_p, uniform(*torch.tensor(keys, device=device).unbind(1)))


def _adjust(logits: Tensor, draws: Sequence[Draw], tokens: Tensor) -> None:
    """Penalties, then biases, then what may not be drawn at all."""
    _penalize(logits, draws, tokens)
    _add_bias(logits, draws)
    for index, entry in enumerate(draws):
        if entry.sampling.allowed is not None:
            kept = logits[index, entry.sampling.allowed]
            logits[index] = -torch.inf
            logits[index, entry.sampling.allowed] = kept
        for ids in _forbidden(entry, tokens):
            logits[index, ids] = -torch.inf
        if entry.mask is not None:
            logits[index].masked_fill_(~entry.mask, -torch.inf)


def _penalize(logits: Tensor, draws: Sequence[Draw], tokens: Tensor) -> None:
    indices = [index for index, entry in enumerate(draws) if entry.sampling.params.has_penalties]
    if not indices:
        return
    entries = [draws[index] for index in indices]
    params = [entry.sampling.params for entry in entries]
    rows, prompt_lengths, lengths = torch.tensor(
        [(entry.row, entry.sampling.prompt_length, entry.position + 1) for entry in entries], device=logits.device
    ).unbind(1)
    numbers = torch.tensor(
        [(each.repetition_penalty, each.presence_penalty, each.frequency_penalty) for each in params],
        device=logits.device,
    )
    history = tokens[:, : max(entry.position for entry in entries) + 1].index_select(0, rows)
    scores = logits[indices]
    penalize(scores, history, prompt_lengths, lengths, Penalties(*numbers.unbind(1)))
    logits[indices] = scores


def _add_bias(logits: Tensor, draws: Sequence[Draw]) -> None:
    biased = [(index, *entry.sampling.bias) for index, entry in enumerate(draws) if entry.sampling.bias is not None]
    if biased:
        counts = torch.tensor([len(ids) for _, ids, _ in biased], device=logits.device)
        rows = torch.tensor([index for index, _, _ in biased], device=logits.device).repeat_interleave(counts)
        ids, bias = (torch.cat(parts) for parts in list(zip(*biased))[1:])
        logits.index_put_((rows, ids), bias, accumulate=True)


def _forbidden(entry: Draw, tokens: Tensor) -> list[Tensor]:
    sampling = entry.sampling
    forbidden = [] if sampling.banned is None else [sampling.banned]
    if sampling.stops is not None and entry.position + 1 - sampling.prompt_length < sampling.params.min_tokens:
        forbidden.append(sampling.stops)
    for runs in sampling.banned_runs:
        length = runs.prefixes.shape[1]
        if length <= entry.position + 1:
            tail = tokens[entry.row, entry.position + 1 - length : entry.position + 1]
            forbidden.append(runs.last[(runs.prefixes == tail).all(1)])
    return forbidden
