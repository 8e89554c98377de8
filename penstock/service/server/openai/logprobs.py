"""Log probabilities in the two shapes clients know."""

import math
from collections.abc import Sequence
from typing import Any

from penstock.runtime.core.batch import Logprob
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

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
        self.clear()

    def clear(self) -> None:
        """Begin new columns where the last ended."""
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []
        self._top_ids: list[dict[str, float] | None] = []

    def add_first(self, token_id: int) -> None:
        """The first token of a prompt, which nothing predicts."""
        self._add(token_text(self._tokenizer, token_id), None, None)
        self._top_ids.append(None)

    def add(self, logprobs: Sequence[Logprob]) -> None:
        for one in logprobs:
            text = token_text(self._tokenizer, one.token_id)
            top = {token_text(self._tokenizer, rival): number(logprob) for rival, logprob in one.top[: self._num_top]}
            top.setdefault(text, number(one.logprob))
            self._add(text, number(one.logprob), top if self._num_top else None)
            self._top_ids.append({str(rival): number(logprob) for rival, logprob in one.top[: self._num_top]})

    def _add(self, text: str, logprob: float | None, top: dict[str, float] | None) -> None:
        self._tokens.append(text)
        self._logprobs.append(logprob)
        self._tops.append(top)
        self._offsets.append(self._offset)
        self._offset += len(text)

    @property
    def value(self) -> dict[str, Any]:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
            **({"top_token_ids": self._top_ids} if self._has_ids else {}),
        }
