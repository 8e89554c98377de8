"""A runner that never waits for the GPU between steps.

Tokens drawn stay in their rows on the device, where the next step reads them; the host learns them later, from the ticket.
Steps that only decode replay a graph. What needs the host in the middle of a step (log probabilities, penalties, drafts)
takes the plain runner's way over the same rows.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.core.batch import Batch, Chunk, StepOutput
from penstock.core.request import SamplingParams
from penstock.layers.decoder import Decoder
from penstock.layers.step import Step
from penstock.ops.draw import Keys, draw_whole
from penstock.ops.sampling import Wishes, draw, uniform
from penstock.runtime.graphs import DecodeGraphs, padded_size
from penstock.runtime.inputs import make_inputs
from penstock.runtime.runner import ModelRunner, Ticket
from penstock.runtime.sampler import NOT_FINITE, are_finite

MAX_UNDER_WAY = 8
"""Pinned buffers in turn: more than an engine ever has steps under way."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A step on its way: its tokens arrive in pinned memory."""

    arrived: torch.cuda.Event
    tokens: Tensor
    is_sampling: Sequence[bool]

    def result(self) -> StepOutput:
        self.arrived.synchronize()
        drawn = iter(self.tokens.tolist())
        tokens = [(next(drawn),) if samples else () for samples in self.is_sampling]
        failures = tuple((index, NOT_FINITE) for index, token in enumerate(tokens) if token and token[0] < 0)
        return StepOutput(tuple(tokens), failures=failures)


class Pinned:
    """Small pinned buffers used in turn, so that a copy under way is never written over."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._ring = deque(torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(MAX_UNDER_WAY))

    def next(self) -> Tensor:
        self._ring.rotate()
        return self._ring[0]


class CudaRunner(ModelRunner):
    def __init__(self, model: Decoder, num_blocks: int, block_size: int, max_sequences: int, max_context: int) -> None:
        """One row and one block more than asked for: padding of recorded batches reads and writes there."""
        super().__init__(model, num_blocks + 1, block_size, max_sequences + 1, max_context)
        device = model.embedding.weight.device
        self._idle_row = max_sequences
        self._tables = torch.full(
            (max_sequences + 1, -(-max_context // block_size)), num_blocks, dtype=torch.int32, device=device
        )
        self._graphs = DecodeGraphs(model, self._cache, self._rotations, self._rows.tokens, self._tables)
        self._numbers = torch.zeros((4, max_sequences + 1), device=device)
        """temperature, top_k, top_p, min_p of each row."""
        self._seeds = torch.zeros((2, max_sequences + 1), dtype=torch.int64, device=device)
        """seed and choice of each row."""
        size = padded_size(max_sequences)
        self._needs_host = [False] * (max_sequences + 1)
        """The row's wishes are carried out on the host."""
        self._is_filtered = [False] * (max_sequences + 1)
        """The row draws from a part of the vocabulary."""
        self._places = Pinned((2, size))
        self._tokens_out = Pinned((size,))

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Ticket:
        self._take_wishes(batch.chunks)
        if not all(self._is_simple(chunk) for chunk in batch.chunks):
            done = super().launch(batch)
            self._keep_tables(batch.chunks)
            return done
        self._cache.copy(batch.copies)
        chunks = list(batch.chunks)
        self._rows.place(batch.step, chunks)
        self._keep_tables(chunks)
        if all(chunk.length == 1 and not chunk.token_ids for chunk in chunks):
            flight = self._decode(chunks)
        else:
            flight = self._mixed(chunks)
        self._rows.commit(batch.step, chunks, [])
        return flight

    # What rows hold on the device beside their tokens

    def _take_wishes(self, chunks: Sequence[Chunk]) -> None:
        arrivals = [(chunk.row, chunk.arrival) for chunk in chunks if chunk.arrival is not None]
        if not arrivals:
            return
        for row, arrival in arrivals:
            self._needs_host[row] = _needs_host(arrival.params)
            self._is_filtered[row] = _is_filtered(arrival.params)
        rows = torch.tensor([row for row, _ in arrivals]).to(self._numbers.device, non_blocking=True)
        params = [arrival.params for _, arrival in arrivals]
        numbers = torch.tensor([(each.temperature, each.top_k, each.top_p, each.min_p) for each in params])
        seeds = torch.tensor([(arrival.params.seed, arrival.choice) for _, arrival in arrivals])
        self._numbers[:, rows] = numbers.t().to(self._numbers.device, non_blocking=True)
        self._seeds[:, rows] = seeds.t().to(self._seeds.device, non_blocking=True)

    def _keep_tables(self, chunks: Sequence[Chunk]) -> None:
        grown = [chunk.row for chunk in chunks if chunk.new_blocks]
        if grown:
            tables = torch.from_numpy(self._rows.tables(np.array(grown))).to(self._tables.device, non_blocking=True)
            self._tables[torch.tensor(grown).to(self._tables.device, non_blocking=True)] = tables

    def _is_simple(self, chunk: Chunk) -> bool:
        """Nothing of it is looked at by the host."""
        return not (self._needs_host[chunk.row] or chunk.num_drafts or self._refusal(chunk))

    # A step

    def _decode(self, chunks: list[Chunk]) -> Flight:
        size = padded_size(len(chunks))
        places = self._places.next()[:, :size]
        padding = size - len(chunks)
        places[0] = torch.tensor([chunk.row for chunk in chunks] + [self._idle_row] * padding)
        places[1] = torch.tensor([chunk.start for chunk in chunks] + [0] * padding)
        return self._finish(chunks, *self._graphs.replay(places))

    def _mixed(self, chunks: list[Chunk]) -> Flight:
        inputs = make_inputs(chunks, self._rows)
        angles = self._rotations.at(inputs.layout.positions)
        hidden = self._model(inputs.token_ids, Step(inputs.layout, angles, self._cache.layers))
        sampling = [(chunk, begin) for chunk, begin in zip(chunks, inputs.begins) if chunk.samples]
        places = self._places.next()[:, : len(sampling)]
        if sampling:
            last = torch.tensor([begin + chunk.length - 1 for chunk, begin in sampling])
            states = hidden.index_select(0, last.to(hidden.device, non_blocking=True))
            places[0] = torch.tensor([chunk.row for chunk, _ in sampling])
            places[1] = torch.tensor([chunk.end - 1 for chunk, _ in sampling])
            logits = self._model.logits(states)
            return self._finish(chunks, logits, places.to(hidden.device, non_blocking=True))
        return self._finish(chunks, None, places)

    def _finish(self, chunks: list[Chunk], logits: Tensor | None, places: Tensor) -> Flight:
        """Draw, leave the tokens in their rows, send them to the host."""
        is_sampling = [chunk.samples for chunk in chunks]
        out = self._tokens_out.next()[: sum(is_sampling)]
        if logits is not None:
            drawn = self._drawn(chunks, logits, places)
            rows, positions = places
            self._rows.tokens[rows, positions + 1] = drawn.clamp(min=0).int()
            out.copy_(drawn[: len(out)], non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Flight(arrived, out, is_sampling)

    def _drawn(self, chunks: list[Chunk], logits: Tensor, places: Tensor) -> Tensor:
        rows, positions = places
        numbers = self._numbers[:, rows]
        seeds, choices = self._seeds[:, rows]
        keys = Keys(seeds, choices, positions)
        if not any(self._is_filtered[chunk.row] for chunk in chunks if chunk.samples):
            return draw_whole(logits, numbers[0].contiguous(), keys)
        temperature, top_k, top_p, min_p = numbers
        drawn = draw(logits, Wishes(temperature, top_k.long(), top_p, min_p, uniform(*keys)))
        return torch.where(are_finite(logits), drawn, -1)


def _needs_host(params: SamplingParams) -> bool:
    adjusts = params.reads_history or params.logit_bias or params.allowed_token_ids or params.min_tokens
    return bool(adjusts) or params.logprobs is not None or params.prompt_logprobs is not None


def _is_filtered(params: SamplingParams) -> bool:
    return not params.is_greedy and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
