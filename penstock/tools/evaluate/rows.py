"""Rows of log probabilities over the whole vocabulary, taken from a runner's hidden states while it computes a text."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk

SCORES_AT_ONCE = 1 << 23
ScoreRows = Tensor
"""[tokens, vocabulary], log probabilities."""


class RowSink:
    """Where a runner leaves the states of one text at a time; `take` gives what came of them."""

    def __init__(self, score: Callable[[Tensor], Tensor], vocab_size: int) -> None:
        self._score = score
        self._at_once = max(1, SCORES_AT_ONCE // vocab_size)
        self._kept = torch.empty((0, vocab_size))
        self._reached = 0

    @torch.inference_mode()
    def put(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        short = self._reached + len(hidden) - len(self._kept)
        if short > 0:
            self._kept = torch.cat((self._kept, self._kept.new_empty((short, self._kept.shape[1]))))
        for part in hidden.split(self._at_once):  # type: ignore[no-untyped-call]
            end = self._reached + len(part)
            self._kept[self._reached : end] = torch.log_softmax(self._score(part).float(), dim=-1)
            self._reached = end

    def take(self) -> Tensor:
        """[tokens, vocabulary], in float32; they stand until the next text's are put in their place."""
        rows, self._reached = self._kept[: self._reached], 0
        return rows


def of_tokens(rows: Tensor, tokens: Sequence[int]) -> Tensor:
    """What each row says of its token."""
    return rows.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]
