"""A stage of a pipeline on a GPU: decode steps are recorded between two fixed places, others are launched piece by piece.

    hidden states of the stage before  ->  inbox  ->  graph of this stage's layers  ->  sent on, or drawn from in the last

Every stage chooses by the batch alone, so that all of them take the same steps from graphs, padded and ordered alike.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.cuda.forward import Pinned, Replayed, are_decodes, describe_decodes
from penstock.runtime.execution.cuda.graphs import (
    DecodeGraphs,
    GraphParts,
    SampleGraphs,
    make_graph_parts,
    padded_size,
)
from penstock.runtime.execution.eager.forward import EagerForward, Forwarded
from penstock.runtime.execution.eager.sampler import DrawPlan, Sampler
from penstock.runtime.execution.parallel.runner import StageRunner
from penstock.runtime.execution.parallel.stage import StagedDecoder
from penstock.runtime.execution.parallel.world import World
from penstock.runtime.layers.parallel import StageInput
from penstock.runtime.layers.step import Step
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.sampling.sample import Draws, Needs


class StageLayers:
    """A stage's layers as graphs record them. What they read lies in the inbox; a stage that is not the last scores nothing."""

    def __init__(self, staged: StagedDecoder, world: World, most_rows: int) -> None:
        self._model = staged.model
        self._place = world.place
        dtype, width = staged.model.embedding.dtype, self.spec.hidden_size
        self.inbox = torch.zeros((0 if self.is_first else most_rows, width), dtype=dtype, device=staged.device)

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    @property
    def is_first(self) -> bool:
        return not isinstance(self._model.embedding, StageInput)

    @property
    def is_last(self) -> bool:
        return self._place.is_last_stage

    def __call__(self, token_ids: Tensor, step: Step) -> Tensor:
        if isinstance(self._model.embedding, StageInput):
            self._model.embedding.received = self.inbox[: len(token_ids)].clone()  # layers add to it where it lies
        hidden: Tensor = self._model(token_ids, step)
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        return self._model.scores(hidden) if self.is_last else hidden


class NoDraws(Sampler):
    """Of a stage after which others come."""

    def draw(self, scores: Tensor, draws: Draws, needs: Needs) -> Tensor:
        return draws.rows


class StageForward:
    def __init__(self, eager: EagerForward, parts: GraphParts, layers: StageLayers, world: World) -> None:
        self._eager = eager
        self.score = eager.score
        self._layers = layers
        self._world = world
        self._rows = parts.rows
        self._idle_row = parts.idle_row
        self._decodes = DecodeGraphs(parts)
        self._samples = SampleGraphs(parts)
        self._places = Pinned(3, padded_size(parts.idle_row))

    def __call__(self, chunks: list[Chunk], plan: DrawPlan, *, keeps_states: bool) -> Forwarded:
        if keeps_states or self._rows.adapters is not None or not are_decodes(chunks):
            return self._eager(chunks, plan, keeps_states=keeps_states)
        places, order = describe_decodes(chunks, plan.masks, self._places, self._idle_row)
        if not self._layers.is_first:
            inbox = self._layers.inbox[: places.shape[1]]
            inbox.copy_(self._world.recv(tuple(inbox.shape), inbox.dtype))
        computed = self._decodes.replay(places)
        if not self._layers.is_last:
            self._world.send(computed.scores.clone())  # the next replay writes there
        return Replayed(computed, order, self._samples)


def make_recorded_stage(
    staged: StagedDecoder, world: World, shape: RunnerShape, cache_dtype: torch.dtype | None
) -> StageRunner:
    parts = make_graph_parts(staged, shape, cache_dtype, Sampler if world.place.is_last_stage else NoDraws)
    layers: Any = StageLayers(staged, world, padded_size(shape.max_sequences))
    forward = StageForward(EagerForward(staged, parts), replace(parts, model=layers), layers, world)
    return StageRunner(parts, forward, world)
