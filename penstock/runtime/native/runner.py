"""A runner for native decoders, with a short way for the step that a serving engine mostly takes: every sequence goes on by one
token, the likeliest.

Python runs there with caches that the weights have just swept empty, so what counts is how little of it there is. The library
reads tokens and block tables where the rows keep them, and writes what was drawn there. Steps with prompts go the plain
runner's way over the same rows; as long as everybody asks for the likeliest token, torch has no part in them either.
"""

from itertools import accumulate, chain
from struct import Struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.core.batch import Batch, Chunk, StepOutput, make
from penstock.errors import EngineError
from penstock.ops.cpu import library as native
from penstock.ops.draw import NOT_DRAWN
from penstock.runtime.eager.runner import EagerTicket, ModelRunner, StepOutcome, TokenMasks
from penstock.runtime.eager.sampler import NOT_FINITE, Drawn
from penstock.runtime.leftovers import give_back
from penstock.runtime.native.cache import NativeCache
from penstock.runtime.native.decoder import NativeDecoder, pointers

NUMBER_BYTES = 8
Members = tuple[tuple[Any, ...], ...]
"""Rows, lengths, new tokens, whether a token is drawn and arrivals, of all chunks of a step."""


class NativeRunner(ModelRunner):
    def __init__(
        self,
        model: NativeDecoder,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        max_context: int,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, num_blocks, block_size, max_sequences, max_context, cache_dtype)
        self._cache = NativeCache(model.spec, num_blocks, block_size, cache_dtype or model.cache_dtype)
        self._decoder = model
        self._last_step = 0
        self._columns = np.zeros(4 * max_sequences, dtype=np.int64)
        """Rows, starts, lengths and whether a token is drawn, of one chunk after another."""
        self._num_blocks_at = self._rows.num_blocks.ctypes.data
        self._drawn = np.zeros(max_sequences, dtype=np.int64)
        # Made once: asking for them in every step would take longer than using them.
        self._reported, self._found = self._columns.data, self._drawn.data
        self._expect(max_sequences)
        self._members: Members | None = None
        """Who was in the last step, if it went the short way: most often the same are in the next, one position further."""
        angles = self._rotations.tables(model.ropes)
        self._step = native.RowsStep(
            tokens=self._rows.tokens.data_ptr(),
            tables=self._rows.all_tables.ctypes.data,
            cosines=pointers([each.cosine for each in angles]),
            sines=pointers([each.sine for each in angles]),
            chunks=self._columns.ctypes.data,
            drawn=self._drawn.ctypes.data,
            token_stride=self._rows.tokens.stride(0),
            table_stride=self._rows.all_tables.shape[1],
            num_rotations=len(angles),
        )
        self._make_states(max_sequences)
        give_back()  # the model stands where steps read it, and the cache is not written yet

    def launch(self, batch: Batch, masks: TokenMasks | None = None) -> EagerTicket:
        step, chunks, copies, _ = batch
        if masks is not None:
            self._members = None
            self._last_step = max(step, self._last_step)
            return super().launch(batch, masks)
        self._masks = {}
        if step > self._last_step:
            self._last_step = step
            if chunks and not copies:
                rows, starts, lengths, token_ids, new_blocks, samples, arrivals, _ = zip(*chunks)
                members = (rows, lengths, token_ids, samples, arrivals)
                if members == self._members or self._gather(members):
                    if any(new_blocks):
                        self._grow(batch)
                    return self._decode(starts)
        return super().launch(batch)

    def _gather(self, members: Members) -> bool:
        """Make ready for steps of these the short way; False if they have to go the other."""
        rows, lengths, token_ids, samples, arrivals = members
        is_short = max(lengths) == 1 and all(samples) and not any(token_ids) and not any(arrivals)
        if not is_short or not self._rows.are_pure_argmax(rows):
            return False
        self._report((rows, (0,) * len(rows), lengths, samples), len(rows))
        self._step.num_blocks = self._num_blocks_at
        self._step.draws = True
        self._members = members
        return True

    def _grow(self, batch: Batch) -> None:
        growing = [chunk for chunk in batch.chunks if chunk.new_blocks]
        self._rows.place(batch.step, growing)
        self._rows.grow(batch.step, growing)

    def _decode(self, starts: tuple[int, ...]) -> StepOutput:
        self._numbers.pack_into(self._reported, len(starts) * NUMBER_BYTES, *starts)
        self._run(starts)
        tokens = self._numbers.unpack_from(self._found)
        output = make(StepOutput, (tuple(zip(tokens)), (), (), (), ()))
        if NOT_DRAWN in tokens:
            failures = ((index, NOT_FINITE) for index, token in enumerate(tokens) if token == NOT_DRAWN)
            return output._replace(failures=tuple(failures))
        return output

    def _outcomes(self, chunks: list[Chunk]) -> list[StepOutcome]:
        has_drafts = any(chunk.num_drafts for chunk in chunks)
        if has_drafts or self._masks or not self._rows.are_pure_argmax([chunk.row for chunk in chunks]):
            return super()._outcomes(chunks)
        self._run_chunks(chunks, draws=True)
        tokens = self._numbers.unpack_from(self._found)
        return [_outcome(chunk.samples, token) for chunk, token in zip(chunks, tokens)]

    def _forward(self, chunks: list[Chunk]) -> tuple[Tensor, list[int]]:
        lengths = self._run_chunks(chunks, draws=False)
        *begins, num_tokens = accumulate(lengths, initial=0)
        return self._states[:num_tokens], begins

    def _run_chunks(self, chunks: list[Chunk], *, draws: bool) -> tuple[int, ...]:
        """A step of any chunks that are placed; returns their lengths."""
        rows, starts, lengths, _, _, samples, _, _ = zip(*chunks)
        self._members = None
        self._step.num_blocks = None
        self._step.draws = draws
        self._report((rows, starts, lengths, samples), sum(lengths))
        self._run(starts)
        return lengths

    def _make_states(self, count: int) -> None:
        """Room for so many tokens' hidden states; torch is asked where it lies here and not in every step."""
        self._num_states = count
        self._states = torch.empty((count, self._decoder.spec.hidden_size))
        self._step.hidden = self._states.data_ptr()

    def _expect(self, count: int) -> None:
        """So many chunks a step, until told otherwise."""
        self._count = count
        self._numbers = Struct(f"{count}q")
        self._table = Struct(f"{4 * count}q")

    def _report(self, columns: tuple[tuple[int, ...], ...], num_tokens: int) -> None:
        """Lay down the chunks where the library reads them."""
        count = len(columns[0])
        if count != self._count:
            self._expect(count)
        self._table.pack_into(self._reported, 0, *chain.from_iterable(columns))
        if num_tokens > self._num_states:
            self._make_states(num_tokens)
        self._step.num_chunks = count

    def _run(self, starts: tuple[int, ...]) -> None:
        if not self._decoder.compute(self._step, self._cache.layers):
            rows = self._columns[: len(starts)].tolist()
            raise EngineError(f"a row was asked to compute beyond its blocks: rows, starts {(rows, starts)}")


def _outcome(samples: bool, token: int) -> StepOutcome:
    if token == NOT_DRAWN:
        return StepOutcome(failure=NOT_FINITE)
    return StepOutcome((Drawn(token),) if samples else ())
