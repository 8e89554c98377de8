"""Forward passes of ranks that share a vocabulary: where only likeliest tokens are asked for, no rank lays all scores down.

Each finds the best of its own tokens; what is exchanged is three numbers a row instead of a vocabulary's.
"""

from typing import Protocol

import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.forward import Drawn, EagerForward, Forwarded, States
from penstock.runtime.execution.eager.inputs import make_inputs
from penstock.runtime.execution.eager.rows import Rows
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.eager.sampler import DrawPlan, Sampler
from penstock.runtime.execution.kv_cache import KVCache
from penstock.runtime.execution.native.cache import NativeCache
from penstock.runtime.execution.parallel.native import NativePart
from penstock.runtime.execution.parallel.stage import StagedDecoder
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.step import Rotations, Step
from penstock.runtime.ops.rows import keep_drawn
from penstock.runtime.ops.sampling.whole import NOT_DRAWN


class SharedTable(Protocol):
    """The part of a vocabulary that a rank has."""

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token of all ranks' after each hidden state, and whether its scores are finite."""


class SharedForward(EagerForward):
    def __init__(
        self,
        model: Decoder | NativePart,
        table: SharedTable,
        rows: Rows,
        cache: KVCache,
        rotations: Rotations,
        sampler: Sampler,
    ) -> None:
        super().__init__(model, rows, cache, rotations, sampler)
        self.table = table
        self.tokens = rows.tokens

    def __call__(self, chunks: list[Chunk], plan: DrawPlan, *, keeps_states: bool) -> Forwarded:
        inputs = make_inputs(chunks, self._rows)
        if self._rows.adapters is not None:
            self._rows.adapters.set_chunks(chunks)
        angles = self._rotations.at(inputs.layout.positions)
        hidden = self._model(inputs.token_ids, Step(inputs.layout, angles, self._cache.layers))
        return SharedStates(hidden, chunks, inputs.begins, self, self._sampler)

    def likeliest(self, states: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self._rows.adapters is not None:
            self._rows.adapters.set_rows(rows)
        return self.table.likeliest(states)


class SharedStates(States):
    _forward: SharedForward

    def draw(self, plan: DrawPlan) -> Drawn:
        if not plan.rows or not plan.is_pure_argmax or plan.logprobs:
            return super().draw(plan)
        places = [
            self._begins[owner] + position - self._chunks[owner].start
            for owner, position in zip(plan.owners, plan.positions)
        ]
        device = self._hidden.device
        rows, positions = torch.tensor([plan.rows, plan.positions], device=device)
        states = self._hidden.index_select(0, torch.tensor(places, device=device))
        chosen, are_good = self._forward.likeliest(states, rows)
        drawn = torch.where(are_good, chosen, NOT_DRAWN).int()
        keep_drawn(self._forward.tokens, rows, positions, drawn)
        return Drawn(drawn, list(range(len(places))))


class SharedRunner(StepRunner):
    """A rank whose part of the vocabulary is one of several, on any device."""

    def __init__(
        self,
        model: Decoder | NativePart,
        table: SharedTable,
        shape: RunnerShape,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        max_sequences, max_context = shape.max_sequences, shape.max_context
        spec, device = model.spec, model.device
        cache = make_cache(model, shape, cache_dtype)
        rows = Rows(max_sequences, max_context, shape.block_size, spec.vocab_size, device)
        sampler = Sampler(rows.tokens, rows.sampling)
        forward = SharedForward(model, table, rows, cache, Rotations(spec, max_context, device), sampler)
        super().__init__(rows, cache, forward, sampler, spec.vocab_size)


def make_cache(model: Decoder | NativePart | StagedDecoder, shape: RunnerShape, dtype: torch.dtype | None) -> KVCache:
    """Of the rank's own layers and heads, laid out as its steps write it."""
    if isinstance(model, NativePart):
        return NativeCache(model.spec, shape.num_blocks, shape.block_size, dtype or model.cache_dtype)
    return KVCache(model.spec, shape.num_blocks, shape.block_size, dtype or model.cache_dtype, model.device)
