"""What the runner remembers of the sequences in its rows: their tokens, blocks and sampling parameters.

Fed by batches only. Until a step has succeeded nothing it brings is relied on: tokens and blocks are written past what the
row counts as its own, so that a step that failed can be launched again, whole or in part. Steps launched after it, which read
what it did not write, are launched again too: a row remembers how it stood before each of its last few steps.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import EngineError
from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.adapters.slots import AdapterSlots
from penstock.runtime.execution.eager.sampling_state import SamplingStates
from penstock.runtime.execution.eager.upload import to_device
from penstock.runtime.models.kinds.cache import TableGroup

Numbers = npt.NDArray[np.int64]
Run = tuple[int, int, tuple[int, ...]]
"""Row, first position, tokens."""

REMEMBERED_STEPS = 4
"""More than an engine ever has under way at once."""


class Rows:
    """`tokens[row, position]` is the token at a position, as far as the runner was given it or drew it."""

    def __init__(
        self,
        num_rows: int,
        max_context: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        groups: Sequence[TableGroup] = (TableGroup(None, 1),),
    ) -> None:
        self.block_size = block_size
        self.groups = groups
        self.num_columns = -(-max_context // block_size)
        """Blocks of one table. A row's further tables follow its first."""
        self.tokens = torch.zeros((num_rows, max_context + 1), dtype=torch.int32, device=device)
        self._tokens_here = self.tokens.numpy() if device.type == "cpu" else None
        num_tables = sum(group.width for group in groups)
        self.all_tables = np.zeros((num_rows, num_tables * self.num_columns), dtype=np.int32)
        self.num_blocks = np.zeros(num_rows, dtype=np.int32)
        """How many ids of each row's first table count."""
        self._num_others = np.zeros((num_rows, len(groups) - 1), dtype=np.int32)
        """How many blocks of each row's further groups count."""
        self.states = np.full((num_rows, 2), -1, dtype=np.int64)
        """The slots of each row's state: read, and written, by its last chunk."""
        self._grown: list[list[tuple[int, int, list[int]]]] = [[] for _ in range(num_rows)]
        """(step, blocks before it, those of further groups) of the last steps that brought a row blocks."""
        self.sampling = SamplingStates(num_rows, vocab_size, device)
        self._carried: list[dict[int, Tensor]] = [{} for _ in range(num_rows)]
        self.adapters: AdapterSlots | None = None
        """Which adapter each row has; none where a model serves none."""
        self._max_context = max_context
        self._device = device

    def place(self, step: int, chunks: Sequence[Chunk]) -> None:
        """Take in what is new: arrivals, blocks, tokens."""
        arrivals = [(chunk.row, chunk.arrival) for chunk in chunks if chunk.arrival is not None]
        if arrivals:
            self.sampling.take(arrivals)
            if self.adapters is not None:
                self.adapters.take(arrivals)
        for chunk in chunks:
            if chunk.arrival is not None:
                self.num_blocks[chunk.row] = 0
                self._num_others[chunk.row] = 0
                self._grown[chunk.row].clear()
                self._carried[chunk.row].clear()
            self.shrink(step, (chunk,))
            if chunk.new_blocks:
                held = int(self.num_blocks[chunk.row])
                self._put_blocks(chunk.row, held, chunk.new_blocks)
            if chunk.others:
                self._place_others(chunk)
            self.states[chunk.row] = chunk.state or self.states[chunk.row, 1]
            self._check(chunk)
        self._write(chunks)

    def _place_others(self, chunk: Chunk) -> None:
        """A block of a group that takes several ids has one in each of its tables."""
        table = 1
        for group, ids, held in zip(self.groups[1:], chunk.others, self._num_others[chunk.row].tolist()):
            for number in range(group.width):
                own = ids[number :: group.width]
                begin = (table + number) * self.num_columns + held
                self._put_blocks(chunk.row, begin, own)
            table += group.width

    def _put_blocks(self, row: int, begin: int, ids: Sequence[int]) -> None:
        """Write block ids into a row's tables, from a column of the first on."""
        self.all_tables[row, begin : begin + len(ids)] = ids

    def _check(self, chunk: Chunk) -> None:
        held = int(self.num_blocks[chunk.row]) + len(chunk.new_blocks)
        if chunk.end > min(held * self.block_size, self._max_context):
            raise EngineError(
                f"row {chunk.row} was asked to compute up to position {chunk.end} "
                f"with {held} blocks of {self.block_size} and a context of {self._max_context}"
            )

    def _write(self, chunks: Sequence[Chunk]) -> None:
        runs = [(chunk.row, chunk.end - len(chunk.token_ids), chunk.token_ids) for chunk in chunks if chunk.token_ids]
        runs += [(chunk.row, 0, chunk.arrival.history) for chunk in chunks if chunk.arrival and chunk.arrival.history]
        if self._tokens_here is not None:
            for row, start, token_ids in runs:
                self._tokens_here[row, start : start + len(token_ids)] = token_ids
        elif runs:
            self._send(runs)

    def _send(self, runs: list[Run]) -> None:
        lengths = np.array([len(tokens) for _, _, tokens in runs])
        rows = np.repeat(np.array([row for row, _, _ in runs]), lengths)
        places = spread(np.array([start for _, start, _ in runs]), lengths)
        tokens = np.fromiter(chain.from_iterable(tokens for _, _, tokens in runs), dtype=np.int32, count=lengths.sum())
        where = (self.upload(rows), self.upload(places))
        self.tokens[where] = self.upload(tokens)

    def upload(self, numbers: npt.NDArray[Any]) -> Tensor:
        return to_device(torch.from_numpy(numbers), self._device)

    def tables(self, rows: Numbers) -> npt.NDArray[np.int32]:
        """Block ids of some rows, [rows, most blocks]."""
        return self.all_tables[rows]

    def are_pure_argmax(self, rows: Sequence[int]) -> bool:
        """All of them ask for the likeliest token and nothing else."""
        return self.sampling.demanding.isdisjoint(rows)

    def carried(self, row: int, position: int) -> Tensor | None:
        """The hidden state at a position, where the next chunk of a prompt needs it."""
        return self._carried[row].get(position)

    def grow(self, step: int, chunks: Sequence[Chunk]) -> None:
        """Count the blocks that a step brought as the rows' own; launching it again takes them back first."""
        for chunk in chunks:
            if chunk.new_blocks or chunk.others:
                grown = self._grown[chunk.row]
                grown.append((step, int(self.num_blocks[chunk.row]), self._num_others[chunk.row].tolist()))
                del grown[:-REMEMBERED_STEPS]
                self.num_blocks[chunk.row] += len(chunk.new_blocks)
                for number, (group, ids) in enumerate(zip(self.groups[1:], chunk.others)):
                    self._num_others[chunk.row, number] += len(ids) // group.width

    def shrink(self, step: int, chunks: Sequence[Chunk]) -> None:
        """A step will not be launched again: the blocks that it brought are not the rows' own."""
        for chunk in chunks:
            grown = self._grown[chunk.row]
            while grown and grown[-1][0] >= step:
                _, self.num_blocks[chunk.row], self._num_others[chunk.row] = grown.pop()

    def put(self, drawn: list[tuple[int, int, int]]) -> None:
        """Tokens that were drawn elsewhere: (row, position, token)."""
        if drawn:
            rows, places, tokens = torch.tensor(drawn, device=self._device).unbind(1)
            self.tokens[rows, places] = tokens.int()

    def carry(self, row: int, position: int, state: Tensor) -> None:
        """Keep a hidden state for the chunk after it."""
        carried = self._carried[row]
        carried[position] = state
        for old in sorted(carried)[:-REMEMBERED_STEPS]:
            del carried[old]


def spread(starts: Numbers, lengths: Numbers) -> Numbers:
    """start, start + 1, ... for each run, one after another."""
    begins = np.cumsum(lengths) - lengths
    places: Numbers = np.arange(lengths.sum()) + np.repeat(starts - begins, lengths)
    return places
