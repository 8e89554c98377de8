"""Steps that check drafts, recorded once for their size and replayed: as a decode step, with several positions a sequence.

    places   [4, sequences x width]: rows, positions, masks, drafts
             | last token, its drafts, padding | last token, its drafts, padding | ...

Positions past a sequence's drafts are the idle row's. Where sequences have very different numbers of drafts every position is
a sequence of its own (width 1), and keys are read again for each. So it is in the first steps of any shape: a few sizes of
width 1 are recorded before requests come, and a recording takes the host as long as several steps.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.cuda.graphs import Computed, GraphParts, padded_size
from penstock.runtime.execution.cuda.rows import is_check
from penstock.runtime.execution.eager.sampler import NOTHING
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Step
from penstock.runtime.ops.layout import BatchLayout
from penstock.runtime.ops.rows import Decodes, gather_checks
from penstock.runtime.ops.sampling.sample import Draws

WIDTHS = (2, 3, 5, 9, 17)
"""Positions a sequence; fewer are padded to the next of these."""
MAX_TOKENS = 512
MAX_PADDING = 0.75
"""Of the tokens that are asked for, that padding may add where keys are to be read once; a few are free."""
FREE_TOKENS = 16
COMMON_SIZES = (32, 128, 256, 512)
"""Positions of the steps of width 1 that any other can be computed as."""
USES_TO_RECORD = 32
"""Steps of a shape before it is recorded."""


class VerifyGraphs:
    def __init__(self, parts: GraphParts) -> None:
        self._parts = parts
        self._recordings: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Computed]] = {}
        self._uses = Counter[tuple[int, int]]()

    def choose(self, chunks: Sequence[Chunk]) -> tuple[int, int] | None:
        """(sequences, width) to compute such a step as; None for one that is computed otherwise."""
        shape = self.shape_of(chunks)
        if shape is None or shape in self._recordings:
            return shape
        self._uses[shape] += 1
        total = sum(chunk.length for chunk in chunks)
        is_frequent = self._uses[shape] > USES_TO_RECORD
        return shape if is_frequent else (next(size for size in COMMON_SIZES if total <= size), 1)

    def sizes(self) -> tuple[int, ...]:
        """Of the common steps. Positions of a model with states are not sequences of their own."""
        return () if self._parts.has_states else COMMON_SIZES

    @torch.inference_mode()
    def record(self, size: int) -> None:
        """Record steps of width 1 before one comes, on the idle row. Drafts for states are checked piece by piece."""
        if self._parts.has_states:
            return
        self.replay(self._idle(size).pin_memory(), 1)

    def _idle(self, count: int) -> Tensor:
        return torch.tensor([[self._parts.idle_row] * count, [0] * count, [-1] * count, [-1] * count])

    @staticmethod
    def shape_of(chunks: Sequence[Chunk]) -> tuple[int, int] | None:
        """(sequences, width) that such a step is padded to; None for one that is computed otherwise."""
        if not all(is_check(chunk) or (chunk.length == 1 and not chunk.token_ids) for chunk in chunks):
            return None
        total = sum(chunk.length for chunk in chunks)
        widest = max(chunk.length for chunk in chunks)
        width = next((width for width in WIDTHS if widest <= width), 0)
        size = padded_size(len(chunks))
        if width and size * width <= min(MAX_TOKENS, total * (1 + MAX_PADDING) + FREE_TOKENS):
            return size, width
        return (padded_size(total), 1) if total <= MAX_TOKENS else None

    def replay(self, places: Tensor, width: int) -> Computed:
        """Compute a step. `places` come in pinned memory."""
        shape = places.shape[1] // width, width
        recorded = self._recordings.get(shape)
        if recorded is None:
            fixed = places.to(self._parts.rows.tokens.device)
            record = self._parts.recorder.record
            recorded = self._recordings[shape] = record(lambda: self._forward(fixed, width), places.shape[1])
        graph, computed = recorded
        computed.places.copy_(places, non_blocking=True)
        graph.replay()
        return computed

    def warm_up(self, model: Decoder, size: int, width: int) -> None:
        """Goes through a step of the idle row with launches that do nothing, for the sake of what they ask for."""
        if self._parts.has_states:
            return
        held = self._parts.rows
        places = self._idle(size * width).to(held.tokens.device)
        where = held.tokens, held.device_tables, places[0], places[1], places[3], self._parts.cache.block_size
        gather_checks(*where)
        self._compute(model, places, gather_checks.definition(*where), width)

    def _forward(self, places: Tensor, width: int) -> Computed:
        held, (rows, positions, _, drafts) = self._parts.rows, places
        size = self._parts.cache.block_size
        decodes = gather_checks(held.tokens, held.device_tables, rows, positions, drafts, size)
        return self._compute(self._parts.model, places, decodes, width)

    def _compute(self, model: Decoder, places: Tensor, decodes: Decodes, width: int) -> Computed:
        positions = places[1]
        layout = verify_layout(positions, decodes, width)
        others = self._parts.rows.through_others(layout, places[0, ::width], places[0])
        step = Step(layout, self._parts.rotations.at(positions), self._parts.cache.layers, others)
        self._parts.record_rows(places[0])
        hidden = model(decodes.token_ids, step)
        scores = model.scores(hidden)
        drawn = self._parts.sampler.draw(scores, Draws(*places[:3]), NOTHING)
        return Computed(scores, places, drawn, decodes.token_ids, hidden)


def verify_layout(positions: Tensor, decodes: Decodes, width: int) -> BatchLayout:
    """Every sequence has `width` positions, from its first one on."""
    count = positions.shape[0] // width
    return BatchLayout(
        positions=positions,
        slots=decodes.slots,
        block_tables=decodes.block_tables[::width],
        query_starts=torch.arange(0, positions.shape[0] + 1, width, dtype=torch.int32, device=positions.device),
        context_lengths=decodes.context_lengths.view(-1, width).amax(1),  # padding stands at position 0
        lengths=[width] * count,
        contexts=[],
        follows=True,
    )


def describe(
    chunks: Sequence[Chunk], masks: Sequence[int], shape: tuple[int, int], idle_row: int
) -> tuple[list[list[int]], list[int | None]]:
    """The places of a step's tokens, and which of its draws each is; `masks` are those of the draws, in the chunks' order."""
    size, width = shape
    first_draws = [0]
    for chunk in chunks:
        first_draws.append(first_draws[-1] + chunk.length)
    rows, positions, asked, drafts = [], [], [], []
    order: list[int | None] = []
    # Longest first: programs with much to read begin before those with little, and none is left over at the end.
    for index in sorted(range(len(chunks)), key=lambda index: -chunks[index].start):
        chunk, first = chunks[index], first_draws[index]
        length, padding = chunk.length, -chunk.length % width
        rows += [chunk.row] * length + [idle_row] * padding
        positions += [*range(chunk.start, chunk.end), *[0] * padding]
        asked += [*masks[first : first + length], *[-1] * padding]
        drafts += [-1, *chunk.token_ids, *[-1] * padding]
        order += [*range(first, first + length), *[None] * padding]
    left = size * width - len(rows)
    return [rows + [idle_row] * left, positions + [0] * left, asked + [-1] * left, drafts + [-1] * left], order
