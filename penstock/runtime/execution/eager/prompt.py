"""Log probabilities of a prompt's own tokens, a slice at a time.

The token at a position is scored by the hidden state before it, which for a chunk's first token belongs to the chunk before:

    chunk 1   hidden 0 1 2 3                     scores tokens 1 2 3
    chunk 2            | 4 5 6 7   (carries 3)   scores tokens 4 5 6 7
"""

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.rows import Rows
from penstock.runtime.execution.eager.sampler import LogprobTensors, find_logprobs

SLICE = 64
"""Positions whose scores over the vocabulary are held at a time."""


def wants_prompt_logprobs(chunk: Chunk, rows: Rows) -> bool:
    sampling = rows.sampling.of(chunk.row)
    return sampling.wants_prompt_logprobs and chunk.start < sampling.prompt_length


def score_prompt(
    chunk: Chunk, rows: Rows, hidden: Tensor, score: Callable[[Tensor, Tensor], Tensor]
) -> tuple[LogprobTensors, ...]:
    """`hidden` are the chunk's states, of which the last is kept for the next; `score` makes some of them into scores,
    told of which rows they are."""
    sampling = rows.sampling.of(chunk.row)
    before = rows.carried(chunk.row, chunk.start - 1)
    rows.carry(chunk.row, chunk.end - 1, hidden[-1].clone())
    states = hidden if before is None else torch.cat((before[None], hidden))
    first = chunk.start + 1 - (before is not None)
    last = min(chunk.end, sampling.prompt_length)
    if first >= last:
        return ()
    count = sampling.params.prompt_logprobs or 0
    targets = rows.tokens[chunk.row, first:last].long()
    slices = zip(torch.split(states[: last - first], SLICE), torch.split(targets, SLICE))
    own = torch.full((SLICE,), chunk.row, device=hidden.device)
    return tuple(
        find_logprobs(score(some, own[: len(some)]), theirs, [count] * len(theirs)).sent() for some, theirs in slices
    )
