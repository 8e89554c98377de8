"""Forward passes: from chunks that their rows have placed to rows of scores. What a runner is made of beside its sampler.

A `Forward` may be replaced without touching what comes before or after it: by recorded graphs, by the native library, by
several devices.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.inputs import make_inputs
from penstock.runtime.execution.eager.rows import Rows
from penstock.runtime.execution.eager.sampler import DrawPlan, LogprobTensors, Sampler, are_finite, find_logprobs
from penstock.runtime.execution.eager.upload import to_device
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.ops.sampling.sample import Draws

LOGITS_AT_ONCE = 1 << 23
"""Scores over the vocabulary held at a time, whatever the batch."""


class Network(Protocol):
    """A model as forward passes call it."""

    def __call__(self, token_ids: Tensor, step: Step) -> Tensor:
        """Final hidden states [tokens, hidden]."""

    def scores(self, hidden: Tensor) -> Tensor:
        """Over the vocabulary, for some of them."""


class Drawn(NamedTuple):
    """What came of a step's draws, on the device."""

    tokens: Tensor | None
    """A token for each row of scores, or a key of `sampler.FAILURES`; none where nothing was drawn."""
    order: list[int | None]
    """Which of the plan's rows of scores each is for; none for padding."""
    logprobs: tuple[LogprobTensors, ...] = ()
    """Of those rows of scores that ask, in the plan's order."""


class Forwarded(Protocol):
    """A forward pass that is under way."""

    @property
    def ruined(self) -> frozenset[int]:
        """Chunks with a hidden state that is not finite, where that is known: what they wrote to the cache must not be used."""

    def draw(self, plan: DrawPlan) -> Drawn: ...

    def states(self) -> Tensor:
        """Hidden states of all chunks, one after another. Asked for only where the step was told so."""


class Forward(Protocol):
    def __call__(self, chunks: list[Chunk], plan: DrawPlan, *, keeps_states: bool) -> Forwarded:
        """Compute chunks; `keeps_states` says that hidden states are asked for afterwards."""

    def score(self, states: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores over the vocabulary for some hidden states, of these rows. The next call may write over them."""


class States:
    """Hidden states of all chunks, from which scores are made some at a time."""

    def __init__(self, hidden: Tensor, chunks: list[Chunk], begins: list[int], forward: Any, sampler: Sampler) -> None:
        """`forward` is a `Forward`, and what a kind of states of its own asks of it besides."""
        self._hidden = hidden
        self._chunks = chunks
        self._begins = begins
        self._forward = forward
        self._sampler = sampler
        self.ruined = find_ruined(hidden, chunks) if hidden.device.type == "cpu" else frozenset[int]()

    def states(self) -> Tensor:
        return self._hidden[: self._begins[-1] + self._chunks[-1].length]

    def places(self, plan: DrawPlan) -> list[int]:
        """Where the hidden states stand that tokens are drawn after."""
        begins, chunks = self._begins, self._chunks
        return [begins[owner] + position - chunks[owner].start for owner, position in zip(plan.owners, plan.positions)]

    def draw(self, plan: DrawPlan) -> Drawn:
        if not plan.rows:
            return Drawn(None, [])
        places = self.places(plan)
        inputs = to_device(torch.tensor([places, plan.rows, plan.positions, plan.masks]), self._hidden.device)
        tokens: list[Tensor] = []
        logprobs: list[LogprobTensors] = []
        asked = dict(plan.logprobs)
        low, most = 0, max(1, LOGITS_AT_ONCE // self._sampler.vocab_size)
        while low < len(places):
            some = inputs[:2, low : low + most]
            scores = self._forward.score(self._hidden.index_select(0, some[0]), some[1])
            high = low + len(scores)
            tokens.append(self._sampler.draw(scores, Draws(*inputs[1:, low:high]), plan.needs))
            here = [number for number in range(low, high) if number in asked]
            if here:
                local = to_device(torch.tensor([number - low for number in here]), scores.device)
                counts = [asked[number] for number in here]
                found = find_logprobs(scores.index_select(0, local), tokens[-1].index_select(0, local), counts)
                logprobs.append(found.sent())
            low = high
        return Drawn(torch.cat(tokens) if len(tokens) > 1 else tokens[0], list(range(len(places))), tuple(logprobs))


class LikeliestStates(States):
    """Of a step that may ask for likeliest tokens alone, which its forward pass finds without laying all scores down."""

    def draw(self, plan: DrawPlan) -> Drawn:
        if not plan.rows or not self._forward.finds(plan):
            return super().draw(plan)
        described = torch.tensor([self.places(plan), plan.rows, plan.positions, plan.masks])
        places, *about = described.to(self._hidden.device)
        drawn = self._forward.choose(self._hidden.index_select(0, places), about[0], about[2])
        self._sampler.keep(Draws(*about), drawn)
        return Drawn(drawn, list(range(len(plan.rows))))


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What the steps of one runner share."""

    rows: Rows
    cache: KVCache
    rotations: Rotations
    sampler: Sampler


def make_parts(spec: ModelSpec, shape: RunnerShape, device: torch.device, cache: KVCache) -> RunnerParts:
    groups = spec.cache_layout(frees=shape.frees).groups
    rows = Rows(shape.max_sequences, shape.max_context, shape.block_size, spec.vocab_size, device, groups)
    return RunnerParts(rows, cache, Rotations(spec, shape.max_context, device), Sampler(rows.tokens, rows.sampling))


class EagerForward:
    """Piece by piece, on any device."""

    kind: type[States] = States

    def __init__(self, model: Network, parts: RunnerParts) -> None:
        self._model = model
        self._rows = parts.rows
        self._parts = parts

    def __call__(self, chunks: list[Chunk], plan: DrawPlan, *, keeps_states: bool) -> Forwarded:
        inputs = make_inputs(chunks, self._rows)
        if self._rows.adapters is not None:
            self._rows.adapters.set_chunks(chunks)
        angles = self._parts.rotations.at(inputs.layout.positions)
        step = Step(inputs.layout, angles, self._parts.cache.layers, inputs.others, inputs.states)
        hidden = self._model(inputs.token_ids, step)
        return self.kind(hidden, chunks, inputs.begins, self, self._parts.sampler)

    def score(self, states: Tensor, rows: Tensor | None = None) -> Tensor:
        if self._rows.adapters is not None:
            self._rows.adapters.set_rows(rows)
        return self._model.scores(states)


def find_ruined(hidden: Tensor, chunks: list[Chunk]) -> frozenset[int]:
    """Waits for the device."""
    is_finite = are_finite(hidden)
    if bool(is_finite.all()):
        return frozenset()
    by_chunk = torch.split(is_finite, [chunk.length for chunk in chunks])
    return frozenset(index for index, states in enumerate(by_chunk) if not bool(states.all()))
