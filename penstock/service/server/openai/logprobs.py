"""Log probabilities in the two shapes clients know."""

import math
from collections.abc import Sequence
from typing import Any

from penstock.runtime.core.batch import Logprob
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "top_token_ids")
LEAST = -9999.0
"""Told for a token that could not have been drawn."""


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """What a token adds to a text, or how the vocabulary spells it where it adds nothing."""
    data = tokenizer.token_bytes(token_id)
    return data.decode("utf-8", "replace") if data else tokenizer.token(token_id) or ""


def number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST


def chat_entries(
    tokenizer: Tokenizer, logprobs: Sequence[Logprob], num_top: int, *, has_ids: bool = False
) -> list[dict[str, Any]]:
    """`has_ids`: with each token's id, since several tokens may read alike."""
    return [
        _chat_entry(tokenizer, one.token_id, one.logprob, has_ids)
        | {"top_logprobs": [_chat_entry(tokenizer, *rival, has_ids) for rival in one.top[:num_top]]}
        for one in logprobs
    ]


def _chat_entry(tokenizer: Tokenizer, token_id: int, logprob: float, has_id: bool) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    entry = {"token": token_text(tokenizer, token_id), "logprob": number(logprob), "bytes": list(data) or None}
    return entry | {"token_id": token_id} if has_id else entry


class CompletionLogprobs:
    """The four columns of a text completion, built token by token; offsets run on from the text before them.

    `has_ids`: and a fifth, the likeliest tokens by their ids, since several may read alike.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, has_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._has_ids = has_ids
        self._offset = 0
        self._rows: list[tuple[Any, ...]] = []

    def clear(self) -> None:
        """Begin new columns where the last ended."""
        self._rows = []

    def add_first(self, token_id: int) -> None:
        """The first token of a prompt, which nothing predicts."""
        self._add(token_text(self._tokenizer, token_id), None, None, None)

    def add(self, token_ids: Sequence[int], logprobs: Sequence[Logprob]) -> None:
        """Tokens without log probabilities were told of by another replica: offsets run on from them."""
        if not logprobs:
            self._offset += sum(len(token_text(self._tokenizer, token_id)) for token_id in token_ids)
        for one in logprobs:
            text, logprob = token_text(self._tokenizer, one.token_id), number(one.logprob)
            rivals = [(rival, number(other)) for rival, other in one.top[: self._num_top]]
            top = {token_text(self._tokenizer, rival): other for rival, other in rivals}
            top.setdefault(text, logprob)
            self._add(text, logprob, top if self._num_top else None, {str(rival): other for rival, other in rivals})

    def _add(
        self, text: str, logprob: float | None, top: dict[str, float] | None, top_ids: dict[str, float] | None
    ) -> None:
        self._rows.append((text, logprob, top, self._offset, top_ids))
        self._offset += len(text)

    @property
    def value(self) -> dict[str, Any]:
        names = COLUMNS if self._has_ids else COLUMNS[:-1]
        return {name: [row[place] for row in self._rows] for place, name in enumerate(names)}
