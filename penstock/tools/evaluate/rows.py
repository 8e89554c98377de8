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
        self._rows: list[Tensor] = []

    @torch.inference_mode()
    def put(self, chunks: Sequence[Chunk], hidden: Tensor) -> None:
        for begin in range(0, len(hidden), self._at_once):
            scores = self._score(hidden[begin : begin + self._at_once])
            self._rows.append(torch.log_softmax(scores.float(), dim=-1).cpu())

    def put_decodes(self, rows: Sequence[int], starts: Sequence[int], hidden: Tensor) -> None:
        """Nothing beyond the text is of interest."""

    def take(self) -> Tensor:
        """[tokens, vocabulary], in float32."""
        rows, self._rows = torch.cat(self._rows), []
        return rows


def of_tokens(rows: Tensor, tokens: Sequence[int]) -> Tensor:
    """What each row says of its token."""
    return rows.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]
