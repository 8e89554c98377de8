"""Log probabilities of a prompt's own tokens, a slice at a time.

The token at a position is scored by the hidden state before it, which for a chunk's first token belongs to the chunk before:

    chunk 1   hidden 0 1 2 3                     scores tokens 1 2 3
    chunk 2            | 4 5 6 7   (carries 3)   scores tokens 4 5 6 7
"""

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.core.batch import Chunk, Logprob
from penstock.runtime.eager.sampler import describe_logprobs
from penstock.runtime.eager.sampling_state import RowSampling

SLICE = 64
"""Positions whose scores over the vocabulary are held at a time."""


def score_prompt(
    chunk: Chunk,
    sampling: RowSampling,
    before: Tensor | None,
    hidden: Tensor,
    tokens: Tensor,
    score: Callable[[Tensor], Tensor],
) -> tuple[Logprob, ...]:
    """`hidden` are the chunk's states, `before` the one before them, `tokens` the sequence's; `score` makes few into logits."""
    states = hidden if before is None else torch.cat((before[None], hidden))
    first = chunk.start + 1 - (before is not None)
    last = min(chunk.end, sampling.prompt_length)
    count = sampling.params.prompt_logprobs or 0
    if first >= last:
        return ()
    logprobs: list[Logprob] = []
    targets = tokens[first:last].long()
    for small_batch, their_targets in zip(torch.split(states[: last - first], SLICE), torch.split(targets, SLICE)):
        raw = torch.log_softmax(score(small_batch), dim=-1)
        logprobs += describe_logprobs(raw, their_targets, [count] * len(their_targets))
    return tuple(logprobs)
