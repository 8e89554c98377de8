"""A launched step, from its draws to what is reported to the engine."""

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.runtime.core.batch import Batch, Chunk, Logprob, StepOutput, num_agreeing
from penstock.runtime.execution.eager.forward import Drawn, Forwarded
from penstock.runtime.execution.eager.sampler import FAILURES, NOT_FINITE, DrawPlan, LogprobTensors

Refusals = dict[int, str]
"""Chunks that are not computed, and why."""


class SentTokens(Protocol):
    """Tokens on their way to the host."""

    def tokens(self) -> list[int]:
        """Wait for them."""


Sender = Callable[[Tensor | None, int], SentTokens]


class Here(NamedTuple):
    """Tokens that were drawn in this machine's memory."""

    drawn: Tensor | None
    num_drawn: int

    def tokens(self) -> list[int]:
        return [] if self.drawn is None else [int(token) for token in self.drawn.tolist()]


class ChunkOutcome(NamedTuple):
    """What a step gave one chunk."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    prompt_logprobs: tuple[Logprob, ...] = ()
    failure: str | None = None


class LaunchedStep:
    """The ticket of a step. Its draws are made when it is launched, or later where bitmasks have to be there first."""

    def __init__(
        self,
        batch: Batch,
        refusals: Refusals,
        plan: DrawPlan,
        forwarded: Forwarded | None,
        prompts: dict[int, tuple[LogprobTensors, ...]],
        send: Sender,
        fill_masks: Callable[[], None] | None,
    ) -> None:
        self._num_chunks = len(batch.chunks)
        self._chunks = [chunk for index, chunk in enumerate(batch.chunks) if index not in refusals]
        self._refusals = refusals
        self._plan = plan
        self._forwarded = forwarded
        self._prompts = prompts
        self._send = send
        self._fill_masks = fill_masks
        self._sent: tuple[Drawn, SentTokens] | None = None
        self._context = copy_context()  # kernels or definitions: as the step was launched
        if fill_masks is None:
            self.draw()

    def draw(self) -> None:
        """Start the draws, once; the step after this one reads what they leave in the rows."""
        self._drawn_once()

    def _drawn_once(self) -> tuple[Drawn, SentTokens]:
        if self._sent is None:
            self._sent = self._context.run(self._draw)
        return self._sent

    @torch.inference_mode()
    def _draw(self) -> tuple[Drawn, SentTokens]:
        if self._fill_masks is not None:
            self._fill_masks()
        drawn = Drawn(None, []) if self._forwarded is None else self._forwarded.draw(self._plan)
        return drawn, self._send(drawn.tokens, len(drawn.order))

    def result(self) -> StepOutput:
        drawn, arrived = self._drawn_once()
        found = arrived.tokens()
        if self._is_simple(drawn) and (not found or min(found) >= 0):
            single: list[tuple[int, ...]] = [()] * self._num_chunks
            for number, token in zip(drawn.order, found):
                if number is not None:
                    single[self._plan.owners[number]] = (token,)
            return StepOutput(tuple(single))
        by_number = [0] * len(self._plan.rows)
        for number, token in zip(drawn.order, found):
            if number is not None:
                by_number[number] = token
        tokens: list[list[int]] = [[] for _ in self._chunks]
        for owner, token in zip(self._plan.owners, by_number):
            tokens[owner].append(token)
        ruined = frozenset[int]() if self._forwarded is None else self._forwarded.ruined
        logprobs = self._logprobs(drawn)
        outcomes = [
            ChunkOutcome(failure=NOT_FINITE) if index in ruined
            else accepted(chunk, tokens[index], logprobs.get(index, []), self._prompt_logprobs(index))
            for index, chunk in enumerate(self._chunks)
        ]  # fmt: skip
        return self._output(outcomes)

    def _is_simple(self, drawn: Drawn) -> bool:
        """At most a token each, and nothing else to report."""
        is_whole = not (self._refusals or self._prompts or drawn.logprobs)
        is_sound = self._forwarded is None or not self._forwarded.ruined
        return is_whole and is_sound and not any(chunk.num_drafts for chunk in self._chunks)

    def _logprobs(self, drawn: Drawn) -> dict[int, list[Logprob]]:
        """By chunk, one for each of its rows of scores."""
        found: dict[int, list[Logprob]] = {}
        described = (logprob for part in drawn.logprobs for logprob in part.described())
        for (number, _), logprob in zip(self._plan.logprobs, described):
            found.setdefault(self._plan.owners[number], []).append(logprob)
        return found

    def _prompt_logprobs(self, index: int) -> tuple[Logprob, ...]:
        return tuple(logprob for part in self._prompts.get(index, ()) for logprob in part.described())

    def _output(self, computed: Sequence[ChunkOutcome]) -> StepOutput:
        outcomes = iter(computed)
        each = [
            ChunkOutcome(failure=self._refusals[index]) if index in self._refusals else next(outcomes)
            for index in range(self._num_chunks)
        ]
        logprobs = tuple(outcome.logprobs for outcome in each)
        prompt_logprobs = tuple(outcome.prompt_logprobs for outcome in each)
        return StepOutput(
            tokens=tuple(outcome.tokens for outcome in each),
            logprobs=logprobs if any(logprobs) else (),
            prompt_logprobs=prompt_logprobs if any(prompt_logprobs) else (),
            failures=tuple((index, outcome.failure) for index, outcome in enumerate(each) if outcome.failure),
        )


def accepted(
    chunk: Chunk, drawn: list[int], logprobs: list[Logprob], prompt_logprobs: tuple[Logprob, ...]
) -> ChunkOutcome:
    """Accept drafts for as long as the token drawn in their place is the same.

    Drawing from the model's own distribution and accepting a match accepts a draft with exactly its probability, and what is
    drawn at the first mismatch is distributed as the rest: drafts change how fast text comes, never which.

    Where nothing can be drawn behind an accepted draft, the draft is the last: a text that ends with it needs no more (behind
    its end a grammar allows nothing), and one that goes on fails in the next step, as it would without drafts.
    """
    kept = drawn[: num_agreeing(chunk.drafts, drawn) + 1]
    if kept and kept[-1] < 0:
        failure = FAILURES[kept.pop()]
        if not kept:
            return ChunkOutcome(failure=failure)
    return ChunkOutcome(tuple(kept), tuple(logprobs[: len(kept)]), prompt_logprobs)
