"""Runs batches of one model on one device. Implements the engine's `Runner`.

    copies -> rows take in what is new -> one forward pass -> draws -> rows keep what came of it

Nothing outlives a step but the KV cache and the rows, and the rows count on a step's results only once it has succeeded.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.core.batch import Batch, Chunk, Logprob, StepOutput
from penstock.layers.decoder import Decoder
from penstock.layers.step import Rotations, Step
from penstock.runtime.eager.inputs import make_inputs
from penstock.runtime.eager.prompt import score_prompt
from penstock.runtime.eager.rows import Rows
from penstock.runtime.eager.sampler import NOT_FINITE, Draw, Drawn, are_finite, draw_tokens
from penstock.runtime.kv_cache import KVCache
from penstock.runtime.native.decoder import NativeDecoder

LOGITS_AT_ONCE = 1 << 23
"""Scores over the vocabulary held at a time, whatever the batch."""


class TokenMasks(Protocol):
    """Which tokens may be drawn, as the engine says it."""

    @property
    def chunks(self) -> tuple[int, ...]: ...

    @property
    def num_rows(self) -> int: ...

    def fill(self, bits: memoryview) -> None: ...


class EagerTicket(Protocol):
    """A launched step, as the engine takes it."""

    def draw(self) -> None: ...

    def result(self) -> StepOutput: ...


class StepOutcome(NamedTuple):
    """What a step gave one chunk."""

    drawn: tuple[Drawn, ...] = ()
    prompt_logprobs: tuple[Logprob, ...] = ()
    failure: str | None = None


class ModelRunner:
    def __init__(
        self,
        model: Decoder | NativeDecoder,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        max_context: int,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self._model = model
        self._vocab_size = model.spec.vocab_size
        self._cache = KVCache(model.spec, num_blocks, block_size, cache_dtype or model.cache_dtype, model.device)
        self._rotations = Rotations(model.spec, max_context, model.device)
        self._masks: dict[int, Tensor] = {}
        """For rows that draw under masks in this step: [1 + drafts, vocabulary]."""
        self._rows = Rows(max_sequences, max_context, block_size, model.spec.vocab_size, model.device)

    @torch.inference_mode()
    def launch(self, batch: Batch, masks: TokenMasks | None = None) -> EagerTicket:
        self._masks = {} if masks is None else _unpacked(masks, batch.chunks, self._vocab_size, self._model.device)
        self._cache.copy(batch.copies)
        refusals = [self._refusal(chunk) for chunk in batch.chunks]
        chunks = [chunk for chunk, refusal in zip(batch.chunks, refusals) if refusal is None]
        computed = iter(self._compute(batch.step, chunks) if chunks else ())
        return _output([refusal or next(computed) for refusal in refusals])

    def _refusal(self, chunk: Chunk) -> StepOutcome | None:
        """A token the model has no embedding for fails its own sequence, not the step."""
        for token in (min(chunk.token_ids), max(chunk.token_ids)) if chunk.token_ids else ():
            if not 0 <= token < self._vocab_size:
                return StepOutcome(failure=f"token id {token} is outside the vocabulary of {self._vocab_size}")
        return None

    def _compute(self, step: int, chunks: list[Chunk]) -> list[StepOutcome]:
        self._rows.place(step, chunks)
        outcomes = self._outcomes(chunks)
        self._rows.commit(step, chunks, _last_tokens(chunks, outcomes))
        return outcomes

    def _outcomes(self, chunks: list[Chunk]) -> list[StepOutcome]:
        """The rows have placed, and so checked, what the chunks bring; it is not counted as theirs yet."""
        hidden, begins = self._forward(chunks)
        drawn = self._draw(chunks, hidden, begins)
        reported = self._score_prompts(chunks, hidden, begins)
        ruined = _ruined(hidden, chunks)
        return [
            StepOutcome(failure=NOT_FINITE) if index in ruined else _outcome(chunk, drawn[index], reported[index])
            for index, chunk in enumerate(chunks)
        ]

    def _forward(self, chunks: list[Chunk]) -> tuple[Tensor, list[int]]:
        """Final hidden states of all tokens, and the first of each chunk."""
        inputs = make_inputs(chunks, self._rows)
        angles = self._rotations.at(inputs.layout.positions)
        return self._model(inputs.token_ids, Step(inputs.layout, angles, self._cache.layers)), inputs.begins

    def _draw(self, chunks: list[Chunk], hidden: Tensor, begins: list[int]) -> list[list[Drawn]]:
        """The tokens drawn after the last position of each chunk that samples, and after each position before a draft."""
        draws: list[Draw] = []
        places: list[int] = []
        for chunk, begin in zip(chunks, begins):
            if chunk.samples:
                sampling, masks = self._rows.sampling(chunk.row), self._masks.get(chunk.row)
                first = chunk.length - 1 - chunk.num_drafts
                for ahead in range(first, chunk.length):
                    mask = None if masks is None else masks[ahead - first]
                    draws.append(Draw(chunk.row, chunk.start + ahead, sampling, mask))
                    places.append(begin + ahead)
        drawn: list[Drawn] = []
        most = max(1, LOGITS_AT_ONCE // self._vocab_size)
        for low in range(0, len(draws), most):
            states = hidden.index_select(0, torch.tensor(places[low : low + most], device=hidden.device))
            drawn += self._draw_at(states, draws[low : low + most])
        results = iter(drawn)
        return [[next(results) for _ in range((1 + chunk.num_drafts) * chunk.samples)] for chunk in chunks]

    def _draw_at(self, states: Tensor, draws: list[Draw]) -> list[Drawn]:
        if isinstance(self._model, NativeDecoder) and all(
            entry.sampling.is_pure_argmax and entry.mask is None for entry in draws
        ):
            tokens = self._model.likeliest(states)
            return [Drawn(token) if token >= 0 else Drawn(0, failure=NOT_FINITE) for token in tokens]
        return draw_tokens(self._model.logits(states), draws, self._rows.tokens)

    def _score_prompts(self, chunks: list[Chunk], hidden: Tensor, begins: list[int]) -> list[tuple[Logprob, ...]]:
        reported: list[tuple[Logprob, ...]] = []
        for chunk, begin in zip(chunks, begins):
            sampling = self._rows.sampling(chunk.row)
            if not sampling.wants_prompt_logprobs or chunk.start >= sampling.prompt_length:
                reported.append(())
                continue
            states = hidden[begin : begin + chunk.length]
            before, tokens = self._rows.carried(chunk.row, chunk.start - 1), self._rows.tokens[chunk.row]
            reported.append(score_prompt(chunk, sampling, before, states, tokens, self._model.logits))
            self._rows.carry(chunk.row, chunk.end - 1, states[-1].clone())
        return reported


def _unpacked(masks: TokenMasks, chunks: Sequence[Chunk], vocab_size: int, device: torch.device) -> dict[int, Tensor]:
    """TokenMasks of rows that draw under some, one boolean a token."""
    words = np.zeros((masks.num_rows, -(-vocab_size // 32)), dtype=np.int32)
    masks.fill(words.data)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
    every = torch.from_numpy(bits).bool().to(device)
    rows = [chunks[index].row for index in masks.chunks]
    counts = [1 + chunks[index].num_drafts for index in masks.chunks]
    return dict(zip(rows, torch.split(every, counts)))


def _ruined(hidden: Tensor, chunks: list[Chunk]) -> set[int]:
    """Chunks with a hidden state that is not finite: what they wrote to the cache must not be used."""
    is_finite = are_finite(hidden)
    if bool(is_finite.all()):
        return set()
    by_chunk = torch.split(is_finite, [chunk.length for chunk in chunks])
    return {index for index, states in enumerate(by_chunk) if not bool(states.all())}


def _outcome(chunk: Chunk, drawn: list[Drawn], reported: tuple[Logprob, ...]) -> StepOutcome:
    """Accept drafts for as long as the token drawn in their place is the same.

    Drawing from the model's own distribution and accepting a match accepts a draft with exactly its probability, and what is
    drawn at the first mismatch is distributed as the rest: drafts change how fast text comes, never which.
    """
    drafts = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
    num_accepted = 0
    while num_accepted < len(drafts) and drawn[num_accepted].token == drafts[num_accepted]:
        num_accepted += 1
    kept = tuple(drawn[: num_accepted + 1])
    failure = next((entry.failure for entry in kept if entry.failure), None)
    return StepOutcome(failure=failure) if failure else StepOutcome(kept, reported)


def _last_tokens(chunks: list[Chunk], outcomes: list[StepOutcome]) -> list[tuple[int, int, int]]:
    """(row, position, token) of what each row reads next."""
    return [
        (chunk.row, chunk.end - chunk.num_drafts + len(outcome.drawn) - 1, outcome.drawn[-1].token)
        for chunk, outcome in zip(chunks, outcomes)
        if outcome.drawn
    ]


def _output(outcomes: list[StepOutcome]) -> StepOutput:
    logprobs = tuple(tuple(entry.logprob for entry in each.drawn if entry.logprob) for each in outcomes)
    prompt_logprobs = tuple(each.prompt_logprobs for each in outcomes)
    return StepOutput(
        tokens=tuple(tuple(entry.token for entry in each.drawn) for each in outcomes),
        logprobs=logprobs if any(logprobs) else (),
        prompt_logprobs=prompt_logprobs if any(prompt_logprobs) else (),
        failures=tuple((index, each.failure) for index, each in enumerate(outcomes) if each.failure),
    )
