"""Forward passes of native decoders: the library reads tokens and block tables where the rows keep them.

Where all that is asked for is the likeliest token, the library draws it too: torch has no part in such a step.
"""

from itertools import accumulate, chain
from struct import Struct

import numpy as np
import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.forward import Drawn, Forwarded, LikeliestStates, RunnerParts, States
from penstock.runtime.execution.eager.sampler import DrawPlan
from penstock.runtime.execution.native.adapters import NativeBank
from penstock.runtime.execution.native.decoder import NativeDecoder, pointers
from penstock.runtime.ops.cpu import library as native
from penstock.runtime.ops.sampling.whole import NOT_DRAWN

NUMBER_BYTES = 8


class LikeliestDrawn:
    """A step whose tokens the library has drawn, and left in the rows."""

    def __init__(self, tokens: tuple[int, ...], hidden: Tensor, num_tokens: int) -> None:
        self._tokens = tokens
        self._hidden = hidden
        self._num_tokens = num_tokens
        self.ruined = frozenset(index for index, token in enumerate(tokens) if token == NOT_DRAWN)

    def draw(self, plan: DrawPlan) -> Drawn:
        tokens = torch.tensor([self._tokens[owner] for owner in plan.owners], dtype=torch.int64)
        return Drawn(tokens, list(range(len(plan.owners))))

    def states(self) -> Tensor:
        return self._hidden[: self._num_tokens]


class NativeForward:
    def __init__(self, model: NativeDecoder, parts: RunnerParts) -> None:
        rows = parts.rows
        self._decoder = model
        self._rows, self._cache, self._sampler = rows, parts.cache, parts.sampler
        self._known = rows.tokens.numpy()
        num_rows = len(rows.num_blocks)
        self._columns = np.zeros(4 * num_rows, dtype=np.int64)
        """Rows, starts, lengths and whether a token is drawn, of one chunk after another."""
        self._num_blocks_at = rows.num_blocks.ctypes.data
        self._drawn = np.zeros(num_rows, dtype=np.int64)
        # Made once: asking for them in every step would take longer than using them.
        self._inputs, self._found = self._columns.data, self._drawn.data
        self._expect(num_rows)
        self._angles = angles = parts.rotations.tables(model.ropes)  # the library reads them for as long as this lives
        self._step = native.RowsStep(
            tokens=rows.tokens.data_ptr(),
            tables=rows.all_tables.ctypes.data,
            cosines=pointers([each.cosine for each in angles]),
            sines=pointers([each.sine for each in angles]),
            chunks=self._columns.ctypes.data,
            drawn=self._drawn.ctypes.data,
            token_stride=rows.tokens.stride(0),
            table_stride=rows.all_tables.shape[1],
            num_rotations=len(angles),
            num_tables=rows.all_tables.shape[1] // rows.num_columns,
        )
        self._pointers = np.zeros(num_rows, dtype=np.uint64)
        """Of each row the address of its adapter; 0 for none."""
        self._adaptation = native.Adaptation(self._pointers.ctypes.data)
        self._is_adapted = False
        self._make_states(num_rows)

    def __call__(self, chunks: list[Chunk], plan: DrawPlan, *, keeps_states: bool) -> Forwarded:
        has_drafts = any(chunk.num_drafts for chunk in chunks)
        rows, starts, lengths, _, _, samples, *_ = zip(*chunks)
        self._step.num_blocks = None
        is_plain = self.adapt(rows)
        self._step.draws = plan.is_pure_argmax and not has_drafts and is_plain
        self._set_chunks((rows, starts, lengths, samples), sum(lengths))
        self._run(starts)
        made: LikeliestDrawn | States
        if self._step.draws:
            made = LikeliestDrawn(self._numbers.unpack_from(self._found), self.hidden, sum(lengths))
        else:
            *begins, num_tokens = accumulate(lengths, initial=0)
            kind = LikeliestStates if is_plain else States
            made = kind(self.hidden[:num_tokens], chunks, begins, self, self._sampler)
        if made.ruined:
            self._clear([(rows[index], starts[index], lengths[index]) for index in made.ruined])
        return made

    def finds(self, plan: DrawPlan) -> bool:
        """All that is asked for are likeliest tokens, of some rows of scores those that bitmasks allow."""
        return plan.is_masked_argmax or plan.is_pure_argmax

    def choose(self, states: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
        """The likeliest token after each state, of those that its mask allows, if it has one."""
        return self._decoder.likeliest(states, (self._rows.sampling.bits, masks))

    def score(self, states: Tensor, rows: Tensor | None = None) -> Tensor:
        scores = self._decoder.scores(states)
        adapters = self._rows.adapters
        if adapters is None or rows is None or not self._is_adapted or not isinstance(adapters.bank, NativeBank):
            return scores
        return adapters.bank.adapt_scores(scores, states, adapters.on_device[rows])

    def adapt(self, rows: tuple[int, ...]) -> bool:
        """Make ready for the adapters of these rows; whether the library can draw for all of them."""
        adapters = self._rows.adapters
        slots = () if adapters is None else set(adapters.of(rows)) - {0}
        self._is_adapted = bool(slots)
        if adapters is None or not slots or not isinstance(adapters.bank, NativeBank):
            return True
        bank = adapters.bank
        self._pointers[list(rows)] = bank.addresses[adapters.of(rows)]
        self._adaptation.shrunk_size = bank.shrunk_size
        return all(bank.is_plain(slot) for slot in slots)

    def let_yield(self, *, yields: bool) -> None:
        """Steps may be interrupted from now on, or not."""
        self._step.yields = yields

    def expect_decodes(self, rows: tuple[int, ...]) -> None:
        """Make ready for steps in which these rows go on by one token each, the likeliest."""
        ones = (1,) * len(rows)
        self._set_chunks((rows, (0,) * len(rows), ones, ones), len(rows))
        self._step.num_blocks = self._num_blocks_at
        self._step.draws = True

    def decode(self, starts: tuple[int, ...]) -> tuple[int, ...]:
        """Such a step; `NOT_DRAWN` stands for tokens of rows whose numbers are not finite."""
        self._numbers.pack_into(self._inputs, len(starts) * NUMBER_BYTES, *starts)
        self._run(starts)
        tokens = self._numbers.unpack_from(self._found)
        if NOT_DRAWN in tokens:
            rows = self._columns.tolist()
            self._clear([(rows[index], starts[index], 1) for index, token in enumerate(tokens) if token == NOT_DRAWN])
        return tokens

    def verify(self, rows: tuple[int, ...], starts: tuple[int, ...], widths: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A step in which rows go on by a token each and the drafts after it, which they hold.

        Of the likeliest tokens those that stand, row by row: drafts for as long as they were drawn, and one more."""
        num_tokens = sum(widths)
        self._set_chunks((rows, starts, widths, widths), num_tokens)
        self._step.num_blocks = self._num_blocks_at
        self._step.draws = False
        self._run(starts)
        drawn = self._decoder.likeliest(self.hidden[:num_tokens]).tolist()
        known = self._known
        kept, first = [], 0
        for row, start, width in zip(rows, starts, widths):
            last = first
            while last < first + width - 1 and drawn[last] == known[row, start + 1 + last - first]:
                last += 1
            if drawn[last] != NOT_DRAWN:
                known[row, start + 1 + last - first] = drawn[last]
            kept.append(tuple(drawn[first : last + 1]))
            first += width
        ruined = [run for run, tokens in zip(zip(rows, starts, widths), kept) if tokens[-1] == NOT_DRAWN]
        if ruined:
            self._clear(ruined)
        return kept

    def _clear(self, runs: list[tuple[int, int, int]]) -> None:
        """Wipe keys and values of (row, start, length) that are not finite. Tiles read some keys before a window and weigh
        them with zero: those may be in blocks that another sequence left."""
        rows = self._rows
        if all(group.window is None for group in rows.groups):
            return
        for row, start, length in runs:
            tables = rows.all_tables[row].reshape(-1, rows.num_columns)
            columns = slice(start // rows.block_size, -(-(start + length) // rows.block_size))
            blocks = torch.from_numpy(tables[:, columns].flatten()).long()
            for page in self._cache.pages:
                for part in page:
                    part[blocks] = 0

    def _make_states(self, count: int) -> None:
        """Place for so many tokens' hidden states; torch is asked where it lies here and not in every step."""
        self._num_states = count
        self.hidden = torch.empty((count, self._decoder.spec.hidden_size))
        """Final states of the last step's tokens, one after another; the next step writes over them."""
        self._step.hidden = self.hidden.data_ptr()

    def _expect(self, count: int) -> None:
        """So many chunks a step, until told otherwise."""
        self._count = count
        self._numbers = Struct(f"{count}q")
        self._table = Struct(f"{4 * count}q")

    def _set_chunks(self, columns: tuple[tuple[int, ...], ...], num_tokens: int) -> None:
        """Lay down the chunks where the library reads them."""
        count = len(columns[0])
        if count != self._count:
            self._expect(count)
        self._table.pack_into(self._inputs, 0, *chain.from_iterable(columns))
        if num_tokens > self._num_states:
            self._make_states(num_tokens)
        self._step.num_chunks = count

    def _run(self, starts: tuple[int, ...]) -> None:
        if not self._decoder.compute(self._step, self._cache.layers, self._adaptation if self._is_adapted else None):
            rows = self._columns[: len(starts)].tolist()
            raise EngineError(f"a row was asked to compute beyond its blocks: rows, starts {(rows, starts)}")
