"""How well a model foresees a text: windows slide over it, and each token is scored once, with as much before it as fits.

|---------- context ----------|
[ scored                      ]
          [ seen     | scored ]
                     [ seen     | scored ]
                      <-stride->
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from penstock.errors import RequestError
from penstock.offline.llm import LLM

WINDOWS_AT_ONCE = 8
"""Enough to fill a batch, few enough that what is held does not grow with the text."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens `start` to `end` are computed; those from `scored` on have not been scored before."""

    start: int
    scored: int
    end: int


@dataclass(frozen=True, slots=True)
class Perplexity:
    num_tokens: int
    """Of the text."""
    num_scored: int
    logprob: float
    """Of all tokens scored, together."""
    windows: tuple[tuple[int, float], ...] = ()
    """Of each window: how many tokens, and their log probability."""

    @property
    def value(self) -> float:
        return math.exp(-self.logprob / self.num_scored)


def windows(num_tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Windows of at most `context` tokens that score every token exactly once."""
    end = min(context, num_tokens)
    yield Window(0, 0, end)
    while end < num_tokens:
        scored, end = end, min(end + stride, num_tokens)
        yield Window(max(end - context, 0), scored, end)


def longest_context(llm: LLM) -> int:
    """Tokens of a text that fit a window beside what the model's texts begin with, and one token to draw."""
    return llm.sizing.max_context - 1 - len(opening(llm))


def measure(
    llm: LLM,
    token_ids: Sequence[int],
    context: int,
    stride: int,
    on_progress: Callable[[int, int], None] | None = None,
    adapter: str = "",
) -> Perplexity:
    """`on_progress` is told how many tokens of how many are done. Every window begins as the model's texts begin."""
    check_windows(llm, token_ids, context, stride)
    begin = opening(llm)
    found: list[tuple[int, float]] = []
    remaining = windows(len(token_ids), context, stride)
    while few := list(islice(remaining, WINDOWS_AT_ONCE)):
        scores = llm.score([[*begin, *token_ids[window.start : window.end]] for window in few], adapter=adapter)
        for window, score in zip(few, scores):
            # A score leaves the very first token of its prompt out, so the last ones are counted from the end.
            reported = score[max(len(score) - (window.end - window.scored), 0) :]
            found.append((len(reported), math.fsum(entry.logprob for entry in reported)))
        if on_progress is not None:
            on_progress(few[-1].end, len(token_ids))
    num_scored, total = sum(count for count, _ in found), math.fsum(logprob for _, logprob in found)
    return Perplexity(len(token_ids), num_scored, total, tuple(found))


def check_windows(llm: LLM, token_ids: Sequence[int], context: int, stride: int) -> None:
    """Windows that cannot be are refused."""
    longest = longest_context(llm)
    if not 2 <= context <= longest:
        raise RequestError(f"the context is {context:,} tokens; choose 2 to {longest:,}", param="context")
    if not 1 <= stride <= context:
        raise RequestError(f"the stride is {stride:,} tokens; choose 1 to {context:,}, the context", param="stride")
    if len(token_ids) < 2:
        raise RequestError("the text has fewer than 2 tokens: nothing can be foreseen", param="text")


def opening(llm: LLM) -> list[int]:
    """What the model's texts begin with."""
    return llm.files.tokenizer.encode("", special=True)
