"""Forward passes on a GPU: recorded where that is faster, piece by piece elsewhere. Nothing here waits for the GPU."""

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.cuda.graphs import Computed, DecodeGraphs, GraphParts, SampleGraphs, padded_size
from penstock.runtime.execution.cuda.mixed_graphs import MixedGraphs
from penstock.runtime.execution.cuda.verify_graphs import MAX_TOKENS, VerifyGraphs, describe
from penstock.runtime.execution.eager.forward import Drawn, EagerForward, Forwarded
from penstock.runtime.execution.eager.sampler import NOTHING, DrawPlan, find_logprobs
from penstock.runtime.execution.eager.upload import to_device
from penstock.runtime.ops.op import IS_PLAIN

MAX_UNDER_WAY = 8
"""Pinned buffers in turn: more than an engine ever has steps under way."""


class Pinned:
    """Small pinned buffers used in turn, so that a copy under way is never written over."""

    def __init__(self, *shape: int) -> None:
        self._ring = deque(torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(MAX_UNDER_WAY))

    def next(self) -> Tensor:
        self._ring.rotate()
        return self._ring[0]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step that a graph has computed, plain draws included: what asks for no more is drawn."""

    ruined = frozenset[int]()
    _computed: Computed
    _order: list[int | None]
    _graphs: SampleGraphs

    def draw(self, plan: DrawPlan) -> Drawn:
        computed = self._computed
        drawn = computed.drawn if plan.needs == NOTHING else self._graphs.draw(computed, plan.needs)
        if not plan.logprobs:
            return Drawn(drawn, self._order)
        places = {number: place for place, number in enumerate(self._order)}
        asked = to_device(torch.tensor([places[number] for number, _ in plan.logprobs]), drawn.device)
        counts = [count for _, count in plan.logprobs]
        found = find_logprobs(computed.scores.index_select(0, asked), drawn.index_select(0, asked), counts)
        return Drawn(drawn, self._order, (found.sent(),))

    def states(self) -> Tensor:
        """A step without prompts draws after every token."""
        if self._computed.hidden is None:
            raise EngineError("a replayed step with prompts keeps no hidden states")
        place_of = {number: place for place, number in enumerate(self._order) if number is not None}
        places = torch.tensor([place_of[number] for number in range(len(place_of))])
        return self._computed.hidden.index_select(0, to_device(places, self._computed.hidden.device))


class RecordedSteps(NamedTuple):
    """By what they compute."""

    decodes: DecodeGraphs
    checks: VerifyGraphs
    mixed: MixedGraphs


def record_steps(parts: GraphParts, *, is_adapted: bool = False) -> RecordedSteps:
    parts = replace(parts, is_adapted=is_adapted)
    return RecordedSteps(DecodeGraphs(parts), VerifyGraphs(parts), MixedGraphs(parts, parts.idle_row))


class GraphForward:
    def __init__(self, parts: GraphParts, plain: RecordedSteps, adapted: RecordedSteps) -> None:
        self._eager = EagerForward(parts.model, parts)
        self.score = self._eager.score
        self._rows = parts.rows
        self._plain = plain
        self._adapted = adapted
        self._decodes, self._checks, self._mixed = plain
        self._samples = SampleGraphs(parts)
        self._idle_row = parts.idle_row
        self._places = Pinned(3 if parts.rows.idle_state is None else 5, padded_size(parts.idle_row))
        self._checked_places = Pinned(4, MAX_TOKENS)

    def __call__(self, chunks: list[Chunk], plan: DrawPlan, *, keeps_states: bool) -> Forwarded:
        has_drafts = any(chunk.num_drafts for chunk in chunks)
        is_apart = self._choose(chunks) or IS_PLAIN.get()
        if not is_apart:
            if are_decodes(chunks):
                return self._decode(chunks, plan)
            shape = self._checks.choose(chunks) if has_drafts and self._rows.idle_state is None else None
            if shape is not None:
                return self._verify(chunks, plan, shape)
        if has_drafts:
            self._rows.write_drafts(chunks)
        if not (is_apart or keeps_states or (has_drafts and plan.needs != NOTHING)):
            computed, order = self._replay_mixed(chunks, plan)
            if computed is not None:
                return Replayed(computed, order, self._samples)
        return self._eager(chunks, plan, keeps_states=keeps_states)

    def _choose(self, chunks: list[Chunk]) -> bool:
        """Take the steps recorded with adapters, or those without; whether these cannot be recorded at all."""
        adapters = self._rows.adapters
        is_adapted = adapters is not None and any(adapters.of([chunk.row for chunk in chunks]))
        self._decodes, self._checks, self._mixed = self._adapted if is_adapted else self._plain
        return adapters is not None and is_adapted and not adapters.are_plain(chunks)

    def _replay_mixed(self, chunks: list[Chunk], plan: DrawPlan) -> tuple[Computed | None, list[int | None]]:
        """Chunks with drafts become chunks of a token each, one behind another."""
        apart = [part for chunk in chunks for part in (_apart(chunk) if chunk.num_drafts else (chunk,))]
        numbers = iter(range(len(plan.rows)))
        order = [next(numbers) if chunk.samples else None for chunk in apart]
        masks = [-1 if number is None else plan.masks[number] for number in order]
        return self._mixed.replay(apart, masks), order

    def _verify(self, chunks: list[Chunk], plan: DrawPlan, shape: tuple[int, int]) -> Replayed:
        described, order = describe(chunks, plan.masks, shape, self._idle_row)
        places = self._checked_places.next()[:, : len(described[0])]
        places.numpy()[:] = described  # shorter than by way of another tensor
        return Replayed(self._checks.replay(places, shape[1]), order, self._samples)

    def _decode(self, chunks: list[Chunk], plan: DrawPlan) -> Replayed:
        places, order = describe_decodes(chunks, plan.masks, self._places, self._idle_row)
        if self._rows.idle_state is not None:
            slots = self._rows.states[[chunks[number].row for number in order if number is not None]]
            places[3:] = torch.tensor([[-1], [self._rows.idle_state]])
            places[3:, : len(slots)] = torch.from_numpy(slots.T)
        return Replayed(self._decodes.replay(places), order, self._samples)


def are_decodes(chunks: list[Chunk]) -> bool:
    """Each computes the one token that its row holds."""
    return all(chunk.length == 1 and not chunk.token_ids for chunk in chunks)


def describe_decodes(
    chunks: list[Chunk], masks: list[int], pinned: Pinned, idle_row: int
) -> tuple[Tensor, list[int | None]]:
    """Longest first: programs with much to read begin before those with little, and none is left over at the end."""
    order = sorted(range(len(chunks)), key=lambda index: -chunks[index].start)
    padding = padded_size(len(chunks)) - len(chunks)
    places = pinned.next()[:, : len(chunks) + padding]
    places[0] = torch.tensor([chunks[index].row for index in order] + [idle_row] * padding)
    places[1] = torch.tensor([chunks[index].start for index in order] + [0] * padding)
    places[2] = torch.tensor([masks[index] for index in order] + [-1] * padding)
    return places, list(order)


def _apart(chunk: Chunk) -> list[Chunk]:
    return [chunk._replace(start=chunk.start + place, length=1) for place in range(chunk.length)]
