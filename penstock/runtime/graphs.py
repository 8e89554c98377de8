"""Decode steps recorded once and replayed: a whole forward pass is one launch.

A graph is made the first time a batch of its size comes, so serving starts at once and gets faster as it runs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.layers.decoder import Decoder
from penstock.layers.step import Rotations, Step
from penstock.ops.layout import Layout
from penstock.runtime.kv_cache import KVCache

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Batches are padded to the next of these; larger ones to a multiple of the last step."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A graph, and the tensors it reads and writes at every replay."""

    graph: torch.cuda.CUDAGraph
    places: Tensor
    """[2, size]: rows and positions."""
    logits: Tensor


class DecodeGraphs:
    """One position a row: from the rows' own tokens and block tables to scores over the vocabulary."""

    def __init__(self, model: Decoder, cache: KVCache, rotations: Rotations, tokens: Tensor, tables: Tensor) -> None:
        self._model = model
        self._cache = cache
        self._rotations = rotations
        self._tokens = tokens
        self._tables = tables
        self._recordings: dict[int, Recording] = {}
        self._pool: Any = None

    @property
    def num_recorded(self) -> int:
        return len(self._recordings)

    def forward(self, places: Tensor) -> Tensor:
        """Scores after one more token of each row; `places` are [2, size] rows and positions."""
        rows, positions = places
        size = self._cache.block_size
        tables = self._tables.index_select(0, rows)
        blocks = tables.gather(1, (positions // size)[:, None])[:, 0].long()
        num_rows = rows.shape[0]
        layout = Layout(
            positions=positions,
            slots=blocks * size + positions % size,
            block_tables=tables,
            query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device=rows.device),
            context_lengths=(positions + 1).int(),
            lengths=[1] * num_rows,
            contexts=[],
        )
        step = Step(layout, self._rotations.at(positions), self._cache.layers)
        token_ids = self._tokens[rows, positions].long()
        return self._model.logits(self._model(token_ids, step))

    def replay(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` in one launch, and the places on the device. They come in pinned memory, padded with an idle row."""
        recording = self._recordings.get(places.shape[1])
        if recording is None:
            recording = self._recordings[places.shape[1]] = self._record(places)
        recording.places.copy_(places, non_blocking=True)
        recording.graph.replay()
        return recording.logits, recording.places

    def _record(self, places: Tensor) -> Recording:
        """Run once to let kernels be compiled and chosen, then record. Runs only read rows and write their own KV again."""
        fixed = places.to(self._tokens.device)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.forward(fixed)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self.forward(fixed)
        self._pool = self._pool or graph.pool()
        return Recording(graph, fixed, logits)


def padded_size(num_rows: int) -> int:
    """The recorded size that holds this many rows."""
    for size in SIZES:
        if num_rows <= size:
            return size
    step = SIZES[-1] - SIZES[-2]
    return -(-num_rows // step) * step
