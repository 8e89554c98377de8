"""A runner that never waits for the GPU between steps.

Tokens drawn stay in their rows on the device, where the next step reads them; the host learns them later, from the ticket.
Steps that only decode replay a graph, and so do those with prompts whose launches would take longer than they. What needs the
host in the middle of a step (log probabilities, penalties, drafts) takes the plain runner's way over the same rows.

Until their kernels are compiled, steps take the operations' definitions (see `rehearsal`).
"""

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.core.batch import Batch, Chunk, StepOutput
from penstock.layers.decoder import Decoder
from penstock.layers.step import Step
from penstock.ops.op import IS_PLAIN, plainly
from penstock.runtime.cuda.graphs import DecodeGraphs, GraphParts, GraphRecorder, padded_size
from penstock.runtime.cuda.mixed_graphs import MixedGraphs, padded_chunks
from penstock.runtime.cuda.rows import DeviceRows
from penstock.runtime.cuda.warm_up import KernelWarmUp
from penstock.runtime.eager.inputs import make_inputs
from penstock.runtime.eager.runner import EagerTicket, ModelRunner, TokenMasks
from penstock.runtime.eager.sampler import NOT_FINITE

MAX_UNDER_WAY = 8
"""Pinned buffers in turn: more than an engine ever has steps under way."""


@dataclass(frozen=True, slots=True)
class CudaFlight:
    """A step on its way: its tokens arrive in pinned memory."""

    arrived: torch.cuda.Event
    tokens: Tensor
    owners: list[int | None]
    """The chunk each token is for; none where nothing was to be drawn."""
    num_chunks: int

    def draw(self) -> None:
        """All is drawn."""

    def result(self) -> StepOutput:
        self.arrived.synchronize()
        drawn = self.tokens.tolist()
        tokens: list[tuple[int, ...]] = [()] * self.num_chunks
        for owner, token in zip(self.owners, drawn):
            if owner is not None:
                tokens[owner] = (token,)
        failures = [(index, NOT_FINITE) for index, token in enumerate(tokens) if token and token[0] < 0]
        return StepOutput(tuple(tokens), failures=tuple(failures))


class Later:
    """A step whose masks are not known yet: it is computed when they are."""

    def __init__(self, launch: Callable[[], EagerTicket]) -> None:
        self._launch = launch
        self._ticket: EagerTicket | None = None

    def draw(self) -> None:
        if self._ticket is None:
            self._ticket = self._launch()

    def result(self) -> StepOutput:
        self.draw()
        return self._ticket.result() if self._ticket else StepOutput(())


class Pinned:
    """Small pinned buffers used in turn, so that a copy under way is never written over."""

    def __init__(self, *shape: int) -> None:
        self._ring = deque(torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(MAX_UNDER_WAY))

    def next(self) -> Tensor:
        self._ring.rotate()
        return self._ring[0]


class CudaRunner(ModelRunner):
    _model: Decoder

    def __init__(
        self,
        model: Decoder,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        max_context: int,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        """One row and one block more than asked for: padding of recorded batches reads and writes there."""
        super().__init__(model, num_blocks + 1, block_size, max_sequences + 1, max_context, cache_dtype)
        device = model.device
        max_blocks = -(-max_context // block_size)
        self._idle_row = max_sequences
        self._device_rows = DeviceRows(self._rows, max_sequences + 1, max_blocks, num_blocks, device)
        parts = GraphParts(model, self._cache, self._rotations, self._device_rows, self._idle_row, GraphRecorder())
        self._graphs = DecodeGraphs(parts)
        self._mixed_graphs = MixedGraphs(parts)
        self._warm_up = KernelWarmUp(model, self._graphs, self._mixed_graphs, max_sequences)
        self._places = Pinned(2, padded_size(max_sequences))
        self._tokens_out = Pinned(max(padded_size(max_sequences), padded_chunks(max_sequences)))

    def warm_up(self) -> None:
        """Begin to compile kernels now, for steps that come later."""
        self._warm_up.begin()

    @torch.inference_mode()
    def launch(self, batch: Batch, masks: TokenMasks | None = None) -> EagerTicket:
        if masks is not None:
            return Later(lambda: self._launch(batch, masks))
        with nullcontext() if self._warm_up.has_kernels(batch) else plainly():
            return self._launch(batch)

    @torch.inference_mode()
    def _launch(self, batch: Batch, masks: TokenMasks | None = None) -> EagerTicket:
        self._device_rows.take_arrivals(batch.chunks)
        if masks or any(self._device_rows.needs_host(chunk) or self._refusal(chunk) for chunk in batch.chunks):
            ticket = super().launch(batch, masks)
            self._device_rows.take_blocks(batch.chunks)
            return ticket
        self._cache.copy(batch.copies)
        chunks = list(batch.chunks)
        self._rows.place(batch.step, chunks)
        self._device_rows.take_blocks(chunks)
        drawn, owners = self._draws(chunks)
        self._rows.commit(batch.step, chunks, [])
        return self._send(drawn, owners, len(chunks))

    def _draws(self, chunks: list[Chunk]) -> tuple[Tensor | None, list[int | None]]:
        """Tokens on the device, and the chunk each is for."""
        sampling = [index for index, chunk in enumerate(chunks) if chunk.samples]
        if IS_PLAIN.get():
            return self._compute_mixed(chunks), list(sampling)
        if chunks and all(chunk.length == 1 and not chunk.token_ids for chunk in chunks):
            # Longest first: programs with much to read begin before those with little, and none is left over at the end.
            order = sorted(range(len(chunks)), key=lambda index: -chunks[index].start)
            return self._decode([chunks[index] for index in order]), list(order)
        if chunks and not any(self._device_rows.is_filtered(chunks[index]) for index in sampling):
            drawn = self._mixed_graphs.replay(chunks)
            if drawn is not None:
                return drawn, [index if chunk.samples else None for index, chunk in enumerate(chunks)]
        return self._compute_mixed(chunks), list(sampling)

    def _decode(self, chunks: list[Chunk]) -> Tensor:
        padding = padded_size(len(chunks)) - len(chunks)
        places = self._places.next()[:, : len(chunks) + padding]
        places[0] = torch.tensor([chunk.row for chunk in chunks] + [self._idle_row] * padding)
        places[1] = torch.tensor([chunk.start for chunk in chunks] + [0] * padding)
        recording = self._graphs.replay(places)
        if any(self._device_rows.is_filtered(chunk) for chunk in chunks):
            return self._device_rows.draw(recording.scores, *recording.places, filtered=True)
        return recording.drawn

    def _compute_mixed(self, chunks: list[Chunk]) -> Tensor | None:
        """Prompts, and decodes that share a step with them."""
        if not chunks:
            return None
        inputs = make_inputs(chunks, self._rows)
        angles = self._rotations.at(inputs.layout.positions)
        hidden = self._model(inputs.token_ids, Step(inputs.layout, angles, self._cache.layers))
        sampling = [(chunk, begin) for chunk, begin in zip(chunks, inputs.begins) if chunk.samples]
        if not sampling:
            return None
        last = [begin + chunk.length - 1 for chunk, begin in sampling]
        places = [[chunk.row for chunk, _ in sampling], [chunk.end - 1 for chunk, _ in sampling], last]
        rows, positions, lasts = torch.tensor(places).to(hidden.device, non_blocking=True)
        scores = self._model.scores(hidden.index_select(0, lasts))
        filtered = any(self._device_rows.is_filtered(chunk) for chunk, _ in sampling)
        return self._device_rows.draw(scores, rows, positions, filtered=filtered)

    def _send(self, drawn: Tensor | None, owners: list[int | None], num_chunks: int) -> CudaFlight:
        """Start the tokens on their way to the host."""
        out = self._tokens_out.next()[: len(owners)]
        if drawn is not None:
            out.copy_(drawn[: len(out)], non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return CudaFlight(arrived, out, owners, num_chunks)
