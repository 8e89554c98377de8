"""Decode steps recorded once and replayed: a whole forward pass and its draws are one launch.

A graph is made the first time a batch of its size comes, so serving starts at once and gets faster as it runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.cuda.rows import DeviceRows
from penstock.runtime.execution.eager.forward import RunnerParts
from penstock.runtime.execution.eager.sampler import NOTHING, Sampler
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.garbage import collection_paused
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.ops.layout import BatchLayout, StateLayout
from penstock.runtime.ops.rows import Decodes, gather_decodes, keep_drawn
from penstock.runtime.ops.sampling.sample import Draws, Needs

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Batches are padded to the next of these; larger ones to a multiple of the last step."""


LT_SIZES = range(17, 65)
"""Batches whose products cuBLASLt computes up to 6 % faster than cuBLAS, measured on an H200."""

T = TypeVar("T")


class GraphRecorder:
    """Makes graphs that share their memory: they are replayed one after another."""

    def __init__(self) -> None:
        self._pool: Any = None

    def record(self, run: Callable[[], T], size: int) -> tuple[torch.cuda.CUDAGraph, T]:
        """Run once so that kernels are compiled and chosen, then record. A run writes only what the replay writes again."""
        preferred = torch.backends.cuda.preferred_blas_library()
        if size in LT_SIZES:
            torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()
            torch.cuda.current_stream().wait_stream(side)
            return self.capture(run)
        finally:
            torch.backends.cuda.preferred_blas_library(preferred)

    def capture(self, run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """Record what has been run before. Nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        # An engine that was closed may still hold graphs; to free one while another is recorded spoils that one.
        # Other threads make adapters ready meanwhile, which is none of a recording's business.
        with collection_paused(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            made = run()
        self._pool = self._pool or graph.pool()
        return graph, made


@dataclass(frozen=True, slots=True)
class GraphParts(RunnerParts):
    """What every graph is recorded from."""

    rows: DeviceRows
    model: Decoder
    idle_row: int
    """Padding reads and writes there."""
    recorder: GraphRecorder
    is_adapted: bool = False
    """Rows have adapters in these graphs. Others are recorded as if there were none, and pay nothing for them."""

    @property
    def has_states(self) -> bool:
        return self.rows.idle_state is not None

    def idle_places(self, size: int) -> Tensor:
        """A decode step of padding alone. States begin from nothing."""
        columns = (
            [self.idle_row, 0, -1] if self.rows.idle_state is None else [self.idle_row, 0, -1, -1, self.rows.idle_state]
        )
        return torch.tensor([[number] * size for number in columns])

    def idle_states(self, count: int) -> StateLayout | None:
        if self.rows.idle_state is None:
            return None
        read, written = (
            torch.full((count,), slot, device=self.rows.tokens.device) for slot in (-1, self.rows.idle_state)
        )
        return StateLayout(read, written)

    def record_rows(self, rows: Tensor) -> None:
        """The rows whose tokens the adapted sublayers compute next, while a graph is recorded."""
        if self.rows.adapters is not None:
            self.rows.adapters.record(rows if self.is_adapted else None)


def make_graph_parts(
    network: Any, shape: RunnerShape, cache_dtype: torch.dtype | None, draws: type[Sampler] = Sampler
) -> GraphParts:
    """One row, one block and one state more than asked for: padding of recorded batches reads and writes there."""
    spec, device, num_blocks, frees = network.spec, network.device, shape.num_blocks, shape.frees
    idle_state = shape.num_states if any(group.kind == "state" for group in spec.cache_groups) else None
    num_states = 0 if idle_state is None else idle_state + 1
    size, dtype = (num_blocks + 1, shape.block_size), cache_dtype or network.cache_dtype
    cache = KVCache(spec, *size, dtype, device, frees=frees, num_states=num_states)
    groups, sizes = spec.cache_layout(frees=frees).groups, (shape.max_sequences + 1, shape.max_context)
    rows = DeviceRows(*sizes, shape.block_size, spec.vocab_size, device, num_blocks, groups, idle_state)
    rotations, sampler = Rotations(spec, shape.max_context, device), draws(rows.tokens, rows.sampling)
    return GraphParts(rows, cache, rotations, sampler, network, shape.max_sequences, GraphRecorder())


class Computed(NamedTuple):
    """A forward pass and its plain draws, as a graph leaves them."""

    scores: Tensor
    places: Tensor
    """[3 or more, rows of scores]: rows, positions, masks; then of a decode step the slots of states read and written."""
    drawn: Tensor
    checked: Tensor | None = None
    """The tokens at those positions where some are drafts. The rows hold plain draws by now: a step that draws otherwise puts
    these tokens back first, since penalties look at the tokens before."""
    hidden: Tensor | None = None
    """States of those positions, for heads; steps with prompts leave none."""


class DecodeGraphs:
    """One position a row: from the rows' own tokens and block tables to the next token, left in the row."""

    def __init__(self, parts: GraphParts) -> None:
        self._parts = parts
        self._recordings: dict[int, tuple[torch.cuda.CUDAGraph, Computed]] = {}

    def replay(self, places: Tensor) -> Computed:
        """Compute a step. `places` come in pinned memory, padded with an idle row to a size of `padded_size`."""
        size = places.shape[1]
        recorded = self._recordings.get(size)
        if recorded is None:  # on the idle row: a state must not be advanced twice
            fixed = self._parts.idle_places(size).to(self._parts.rows.tokens.device)
            recorded = self._recordings[size] = self._parts.recorder.record(lambda: self._forward(fixed), size)
        graph, computed = recorded
        computed.places.copy_(places, non_blocking=True)
        graph.replay()
        return computed

    @torch.inference_mode()
    def record_all(self, max_rows: int) -> None:
        """Record every size that a batch of at most so many rows is padded to, on the idle row."""
        for size in sorted({padded_size(count) for count in range(1, max_rows + 1)}):
            self.replay(self._parts.idle_places(size).pin_memory())

    def warm_up(self, model: Decoder, size: int, needs: Needs = NOTHING) -> None:
        """Goes through a step of the idle row with launches that do nothing, for the sake of what they ask for."""
        rows = self._parts.rows
        places = self._parts.idle_places(size).to(rows.tokens.device)
        where = rows.tokens, rows.device_tables, places[0], places[1], self._parts.cache.block_size
        gather_decodes(*where)
        # What is looked up has to be there.
        computed = self._compute(model, places, gather_decodes.definition(*where))
        if needs != NOTHING:
            self._parts.sampler.draw(computed.scores, Draws(*places[:3]), needs)

    def _forward(self, places: Tensor) -> Computed:
        rows, positions = places[:2]
        held = self._parts.rows
        decodes = gather_decodes(held.tokens, held.device_tables, rows, positions, self._parts.cache.block_size)
        return self._compute(self._parts.model, places, decodes)

    def _compute(self, model: Decoder, places: Tensor, decodes: Decodes) -> Computed:
        rows, positions = places[:2]
        num_rows = rows.shape[0]
        layout = BatchLayout(
            positions=positions,
            slots=decodes.slots,
            block_tables=decodes.block_tables,
            query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device=rows.device),
            context_lengths=decodes.context_lengths,
            lengths=[1] * num_rows,
            contexts=[],
        )
        others = self._parts.rows.through_others(layout, rows, rows)
        states = StateLayout(*places[3:]) if self._parts.has_states else None
        step = Step(layout, self._parts.rotations.at(positions), self._parts.cache.layers, others, states)
        self._parts.record_rows(rows)
        hidden = model(decodes.token_ids, step)
        scores = model.scores(hidden)
        return Computed(scores, places, self._parts.sampler.draw(scores, Draws(*places[:3]), NOTHING), hidden=hidden)


class SampleGraphs:
    """Draws that need more than a temperature, recorded for the scores that a recorded forward pass leaves."""

    def __init__(self, parts: GraphParts) -> None:
        self._parts = parts
        self._epoch = 0
        self._recordings: dict[tuple[int, int, Needs], tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def draw(self, computed: Computed, needs: Needs) -> Tensor:
        """Tokens in place of those that were drawn plainly."""
        sampler = self._parts.sampler
        if sampler.epoch != self._epoch:
            self._epoch = sampler.epoch
            self._recordings.clear()
        key = computed.scores.data_ptr(), len(computed.scores), needs
        recorded = self._recordings.get(key)
        if recorded is None:
            recorded = self._parts.recorder.record(lambda: self._draw(computed, needs), len(computed.scores))
            self._recordings[key] = recorded
        graph, drawn = recorded
        graph.replay()
        return drawn

    def _draw(self, computed: Computed, needs: Needs) -> Tensor:
        draws = Draws(*computed.places[:3])
        if computed.checked is not None:
            keep_drawn(self._parts.rows.tokens, draws.rows, draws.positions - 1, computed.checked)
        return self._parts.sampler.draw(computed.scores, draws, needs)


def padded_size(num_rows: int) -> int:
    """The recorded size that holds this many rows."""
    for size in SIZES:
        if num_rows <= size:
            return size
    step = SIZES[-1] - SIZES[-2]
    return -(-num_rows // step) * step
