"""Steps that mix prompts with generation, recorded once for their size and replayed.

Launching such a step piece by piece costs the host about a millisecond a layer. Where the GPU would be done sooner than that,
the step is padded to one of few sizes: the first of a size is launched piece by piece, which loads what it needs, the second is
recorded. What each token is, is worked out on the device from five numbers a chunk. Steps of models with states are not: how
long a chunk is decides what of its state is computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.cuda.graphs import Computed, GraphParts
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.eager.sampler import NOTHING
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Step
from penstock.runtime.ops.layout import BatchLayout
from penstock.runtime.ops.parallel.collective import Peers
from penstock.runtime.ops.sampling.sample import Draws

MAX_LAYER_WORK = 2.9e11
"""Tokens times weights of a layer, up to which an H200 computes a layer faster than its launches are made."""
MAX_RECORDINGS = 96
"""A recording of hundreds of launches takes some megabytes; sizes that come later are launched piece by piece."""
MOST_REHEARSED = 1024
"""Tokens of the largest step that is recorded before one comes: steps in which answers go on are rarely longer."""
LEAST_TOKENS = 64
LEAST_CHUNKS = 32
LIKELY_TOKENS, LIKELY_CHUNKS = 512, 64
WAVE_FROM = 384
"""Tokens from which steps are padded to whole tiles of 128: products of 448 rows take longer than those of 512 (8B on an H200:
16.0 ms a step against 12.8), others between tiles as long."""


class MixedRecording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    chunks: Tensor
    """[5, chunks]: row, start, length, whether a token is drawn, mask."""
    computed: Computed


class MixedGraphs:
    def __init__(self, parts: GraphParts, max_sequences: int) -> None:
        self._parts = parts
        spec = parts.model.spec
        self._max_sequences = max_sequences
        most_tokens = MAX_LAYER_WORK * spec.num_layers / spec.num_active_parameters
        self._most_tokens = 0.0 if parts.has_states else most_tokens
        self._seen: set[tuple[int, int]] = set()
        self._recordings: dict[tuple[int, int], MixedRecording] = {}
        self._left: tuple[Tensor, Tensor] | None = None
        """Where all of them leave scores, and whose these are: they are looked at before the next is replayed."""

    def replay(self, chunks: Sequence[Chunk], masks: Sequence[int]) -> Computed | None:
        """A token for every chunk, what is drawn for those that draw none meaning nothing; None if the step is too long.

        `masks` are those of the chunks' draws.
        """
        num_tokens = sum(chunk.length for chunk in chunks)
        if num_tokens > self._most_tokens:
            return None
        size = padded_tokens(num_tokens), padded_chunks(len(chunks))
        described = [(*chunk[:3], chunk.samples, mask) for chunk, mask in zip(chunks, masks)]
        described += [(self._parts.idle_row, 0, 0, False, -1)] * (size[1] - len(chunks))
        inputs = torch.tensor(described).t().contiguous().pin_memory()
        recording = self._recordings.get(size)
        if recording is None:
            fixed = inputs.to(self._parts.rows.tokens.device, non_blocking=True)
            if size not in self._seen or len(self._recordings) == MAX_RECORDINGS:
                self._seen.add(size)
                return self._forward(self._parts.model, fixed, size[0])
            try:
                graph, computed = self._parts.recorder.capture(lambda: self._forward(self._parts.model, fixed, size[0]))
            except torch.OutOfMemoryError:
                self._seen.clear()  # what is left is needed: begin anew to count sizes
                return self._forward(self._parts.model, fixed, size[0])
            recording = self._recordings[size] = MixedRecording(graph, fixed, computed)
        recording.chunks.copy_(inputs, non_blocking=True)
        recording.graph.replay()
        return recording.computed

    def join(self, peers: Peers) -> None:
        """Record no longer steps than the others that compute them do: parts of a model differ in weights."""
        own = torch.tensor([self._most_tokens], dtype=torch.float64, device=self._parts.rows.tokens.device)
        self._most_tokens = float(peers.all_gather(own).min())

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(tokens, chunks) that steps are padded to, the likeliest first."""
        most = min(int(self._most_tokens), MOST_REHEARSED)
        chunks = {padded_chunks(count) for count in range(1, self._max_sequences + 1)}
        tokens = {padded_tokens(count) for count in range(1, most + 1)}
        sizes = [(each, count) for count in chunks for each in tokens if count <= each <= most]
        return iter(sorted(sizes, key=lambda size: (size[1] > LIKELY_CHUNKS, abs(size[0] - LIKELY_TOKENS), size[1])))

    @torch.inference_mode()
    def record(self, size: tuple[int, int]) -> None:
        """Record a size before a step of it comes, on the idle row."""
        if size in self._recordings or len(self._recordings) >= MAX_RECORDINGS:
            return
        described = [(self._parts.idle_row, 0, size[0] // size[1], False, -1)] * size[1]
        fixed = torch.tensor(described).t().contiguous().to(self._parts.rows.tokens.device)
        self._forward(self._parts.model, fixed, size[0])
        with suppress(torch.OutOfMemoryError):  # what is left is needed for other things
            graph, computed = self._parts.recorder.capture(lambda: self._forward(self._parts.model, fixed, size[0]))
            self._recordings[size] = MixedRecording(graph, fixed, computed)

    def warm_up(self, model: Decoder, num_chunks: int) -> None:
        """Goes through a step of the idle row with launches that do nothing, for the sake of what they ask for."""
        if self._parts.has_states:
            return
        length = max(2, 2 * LEAST_TOKENS // num_chunks)
        described = [[self._parts.idle_row, 0, length, 0, -1]] * num_chunks
        chunks = torch.tensor(described, device=self._parts.rows.tokens.device).t().contiguous()
        self._forward(model, chunks, length * num_chunks)

    def warm_up_apart(self, model: Decoder, lengths: list[int]) -> None:
        """The same for a step of such chunks that is launched piece by piece."""
        described = [[self._parts.idle_row, 0, length] for length in lengths]
        chunks = torch.tensor(described, device=self._parts.rows.tokens.device).t().contiguous()
        where = self._parts.rows, self._parts.cache.block_size, self._parts.idle_row
        token_ids, layout, row_of_token = spread(chunks, sum(lengths), *where)
        layout = replace(layout, lengths=lengths, contexts=lengths)
        self._parts.record_rows(row_of_token)
        model(token_ids, self._step(layout, chunks[0], row_of_token))

    def _forward(self, model: Decoder, chunks: Tensor, num_tokens: int) -> Computed:
        rows, starts, lengths, samples, masks = chunks
        token_ids, layout, row_of_token = spread(
            chunks, num_tokens, self._parts.rows, self._parts.cache.block_size, self._parts.idle_row
        )
        self._parts.record_rows(row_of_token)
        hidden = model(token_ids, self._step(layout, rows, row_of_token))
        self._parts.record_rows(rows)
        made = model.scores(hidden.index_select(0, (layout.query_starts[1:] - 1).clamp(min=0)))
        scores, places = self._kept(made)
        places[0] = torch.where(samples > 0, rows, self._parts.idle_row)
        places[1] = (starts + lengths - 1).clamp(min=0)
        places[2] = masks
        return Computed(scores, places, self._parts.sampler.draw(made, Draws(*places), NOTHING))

    def _step(self, layout: BatchLayout, rows: Tensor, row_of_token: Tensor) -> Step:
        others = self._parts.rows.through_others(layout, rows, row_of_token)
        angles, states = self._parts.rotations.at(layout.positions), self._parts.idle_states(len(rows))
        return Step(layout, angles, self._parts.cache.layers, others, states)

    def _kept(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of the scores where it stays, and place for whose they are."""
        count, width = scores.shape
        if self._left is None or len(self._left[0]) < count:
            most = max(count, padded_chunks(self._max_sequences))
            places = torch.zeros((3, most), dtype=torch.int64, device=scores.device)
            self._left = torch.empty((most, width), dtype=scores.dtype, device=scores.device), places
        kept, places = self._left
        return kept[:count].copy_(scores), places[:, :count]


def spread(
    chunks: Tensor, num_tokens: int, held: DeviceRows, block_size: int, idle_row: int
) -> tuple[Tensor, BatchLayout, Tensor]:
    """Token ids, layout and rows of chunks that are described on the device. Tokens past the last are the idle row's."""
    rows, starts, lengths = chunks[:3]
    ends = lengths.cumsum(0)
    numbers = torch.arange(num_tokens, device=chunks.device)
    owners = torch.searchsorted(ends, numbers, right=True)
    is_token = owners < len(rows)
    owners = owners.clamp(max=len(rows) - 1)
    positions = torch.where(is_token, (starts - ends + lengths)[owners] + numbers, 0)
    row_of_token = torch.where(is_token, rows[owners], idle_row)
    blocks = held.device_tables[row_of_token, positions // block_size].long()
    layout = BatchLayout(
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        block_tables=held.device_tables.index_select(0, rows),
        query_starts=torch.nn.functional.pad(ends, (1, 0)).int(),
        context_lengths=(starts + lengths).int(),
        lengths=[],
        contexts=[],
    )
    return held.tokens[row_of_token, positions].long(), layout, row_of_token


def padded_tokens(num_tokens: int) -> int:
    """Not more than a quarter further."""
    least = LEAST_TOKENS if num_tokens <= WAVE_FROM else 2 * LEAST_TOKENS
    step = max(least, (1 << num_tokens.bit_length()) // 16)
    return -(-num_tokens // step) * step


def padded_chunks(num_chunks: int) -> int:
    return max(LEAST_CHUNKS, 1 << (num_chunks - 1).bit_length())
