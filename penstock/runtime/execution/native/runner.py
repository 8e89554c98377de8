"""A runner for native decoders, with a short way for the steps that a serving engine mostly takes: every sequence goes on by
the likeliest token, or by as many as its drafts come true.

Python runs there with caches that the weights have just swept empty, so what counts is how little of it there is. Other steps
go the way of every runner.
"""

from typing import Any, NamedTuple

import torch

from penstock.errors import StepInterruptedError
from penstock.runtime.core.batch import Arrival, Batch, Chunk, StepOutput, make
from penstock.runtime.core.runner import Masks, RunnerShape, Ticket
from penstock.runtime.execution.eager.forward import make_parts
from penstock.runtime.execution.eager.runner import StepRunner
from penstock.runtime.execution.eager.sampler import NOT_FINITE
from penstock.runtime.execution.native.cache import NativeCache
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.execution.native.forward import NativeForward
from penstock.runtime.ops.sampling.whole import NOT_DRAWN


class ChunkColumns(NamedTuple):
    """Columns of a step's chunks: what must be equal for the step to go the way the last one went."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    samples: tuple[bool, ...]
    arrivals: tuple[Arrival | None, ...]


class NativeRunner(StepRunner):
    def __init__(self, model: NativeDecoder, shape: RunnerShape, cache_dtype: torch.dtype | None = None) -> None:
        size, dtype = (shape.num_blocks, shape.block_size), cache_dtype or model.cache_dtype
        cache = NativeCache(model.spec, *size, dtype, frees=shape.frees)
        parts = make_parts(model.spec, shape, model.device, cache)
        self._native = NativeForward(model, parts)
        super().__init__(parts, self._native)
        self.interrupt = model.library.interrupt
        self._yields = False
        self._last_step = 0
        self._members: ChunkColumns | None = None
        """Who was in the last step, if it went the short way: most often the same are in the next, one position further."""

    @property
    def yields(self) -> bool:
        """Steps launched from now on may be interrupted."""
        return self._yields

    @yields.setter
    def yields(self, yields: bool) -> None:
        if yields is not self._yields:
            self._yields = yields
            self._native.let_yield(yields=yields)

    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        try:
            return self._launch(batch, masks)
        except StepInterruptedError:
            self._members = None
            self._rows.shrink(batch.step, batch.chunks)
            raise

    def _launch(self, batch: Batch, masks: Masks | None) -> Ticket:
        chunks = batch.chunks
        if batch.step > self._last_step:
            self._last_step = batch.step
            if chunks and not batch.copies and masks is None:
                columns: Any = make(Chunk, zip(*chunks))  # a tuple under each of a chunk's names
                rows, starts = columns.row, columns.start
                members = ChunkColumns(rows, columns.length, columns.token_ids, columns.samples, columns.arrival)
                if members == self._members or self._gather(members):
                    if any(columns.new_blocks) or (any(columns.others) and any(map(any, columns.others))):
                        self._grow(batch)
                    tokens = self._native.decode(starts)
                    if self.states is not None:
                        self.states.put(chunks, self._native.hidden[: len(chunks)])
                    return _output(tuple(zip(tokens)))
                if self._are_checks(members, columns.num_drafts):
                    self._members = None
                    self._grow(batch)
                    kept = self._native.verify(rows, starts, columns.length)
                    if self.states is not None:
                        self.states.put(chunks, self._native.hidden[: sum(columns.length)])
                    return _output(tuple(kept))
        self._members = None
        return super().launch(batch, masks)

    def _gather(self, members: ChunkColumns) -> bool:
        """Make ready for steps of these the short way; False if they have to go the other."""
        draws_one = max(members.lengths) == 1 and all(members.samples)
        is_short = draws_one and not any(members.token_ids) and not any(members.arrivals)
        if not is_short or not self._rows.are_pure_argmax(members.rows) or not self._native.adapt(members.rows):
            return False
        self._native.expect_decodes(members.rows)
        self._members = members
        return True

    def _are_checks(self, members: ChunkColumns, num_drafts: tuple[int, ...]) -> bool:
        """All of them go on by a token and drafts after it, the likeliest each, and the model has such tokens."""
        rows, token_ids = members.rows, members.token_ids
        is_short = all(members.samples) and not any(members.arrivals)
        is_short = is_short and all(length == 1 + n for length, n in zip(members.lengths, num_drafts))
        if not is_short or tuple(map(len, token_ids)) != num_drafts or not self._rows.are_pure_argmax(rows):
            return False
        if not self._native.adapt(rows):
            return False
        return all(min(ids) >= 0 and max(ids) < self._vocab_size for ids in token_ids if ids)

    def _grow(self, batch: Batch) -> None:
        """Take in blocks and drafts."""
        growing = [chunk for chunk in batch.chunks if chunk.new_blocks or chunk.token_ids or any(chunk.others)]
        self._rows.place(batch.step, growing)
        self._rows.grow(batch.step, growing)


def _output(tokens: tuple[tuple[int, ...], ...]) -> StepOutput:
    """Of each chunk the tokens that stand: what was not drawn is the last of them."""
    failures = tuple([(index, NOT_FINITE) for index, kept in enumerate(tokens) if kept[-1] == NOT_DRAWN])
    if failures:
        failed = {index for index, _ in failures}
        tokens = tuple([() if index in failed else kept for index, kept in enumerate(tokens)])
    return make(StepOutput, (tokens, (), (), (), failures))
