"""Blocks between a GPU's cache and pinned host memory, on streams of their own: steps go on beside them.

    out   gather [blocks, bytes] on the device  ->  rows of pinned memory
    in    rows of pinned memory                 ->  a few pieces in turn on the device, each scattered into the cache

A gather or scatter is ordered after the steps launched before it. Only a fenced one makes later steps wait, and only for the
gather: after that its blocks may be written. What comes in is on its way as soon as it is asked for, behind no other wait.
"""

import contextlib
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch

from penstock.runtime.execution.kv_cache import KVCache

SLAB_BYTES = 1 << 30
"""Pinned memory is given in powers of two: in pieces of one, little of it is wasted."""
PIECE_BYTES = 128 << 20
NUM_PIECES = 4
"""Half a gibibyte of the device holds what is on its way in: more than comes in while a step runs."""
MAX_IN_FLIGHT = 256
"""Rows beyond those of a full host tier: copies whose records are not kept yet."""


class PinnedRows:
    """Host memory that a GPU reads and writes by itself, in rows of a block. A row is free again when nobody refers to it."""

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self._slab_rows = max(SLAB_BYTES // row_bytes, 1)
        counts = [min(self._slab_rows, num_rows - begin) for begin in range(0, num_rows, self._slab_rows)]
        self._slabs = [torch.empty((count, row_bytes), dtype=torch.uint8, pin_memory=True) for count in counts]
        self._arrays = [slab.numpy() for slab in self._slabs]
        self._row_bytes = row_bytes
        self._begins = sorted((slab.data_ptr(), number) for number, slab in enumerate(self._slabs))
        self._free = deque(range(num_rows))
        """In the order of freeing: neighbours are taken together again, and copied together."""

    def take(self, count: int) -> list[int]:
        """Numbers of rows; fewer where there are not as many."""
        rows: list[int] = []
        with contextlib.suppress(IndexError):  # another thread takes some too
            while len(rows) < count:
                rows.append(self._free.popleft())
        return rows

    def lend(self, row: int) -> memoryview:
        """A row as bytes; it is free again when the last reference to them goes."""
        slab, place = divmod(row, self._slab_rows)
        view = self._arrays[slab][place]
        weakref.finalize(view, self._free.append, row)
        return memoryview(view)

    def fill(self, rows: list[int], staged: torch.Tensor) -> None:
        """Neighbouring rows in one copy."""
        for place, target in self._runs(rows):
            target.copy_(staged[place : place + len(target)], non_blocking=True)

    def runs(self, contents: Sequence[bytes | memoryview]) -> list[torch.Tensor] | None:
        """Lent rows as few tensors, neighbours in one; None if some of it lies elsewhere."""
        addresses = [np.frombuffer(content, dtype=np.uint8).ctypes.data for content in contents]
        rows = [row for row in map(self._row_at, addresses) if row is not None]
        return None if len(rows) < len(contents) else [run for _, run in self._runs(rows)]

    def _runs(self, rows: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Neighbours in one tensor each, and which of the rows is its first."""
        for (slab, _), run in groupby(enumerate(rows), lambda pair: (pair[1] // self._slab_rows, pair[1] - pair[0])):
            pairs = list(run)
            place, row = pairs[0]
            yield place, self._slabs[slab][row % self._slab_rows :][: len(pairs)]

    def _row_at(self, address: int) -> int | None:
        """The number of the row that begins there."""
        place = bisect_right(self._begins, (address, len(self._begins))) - 1
        if place < 0:
            return None
        begin, slab = self._begins[place]
        row, rest = divmod(address - begin, self._row_bytes)
        return slab * self._slab_rows + row if row < len(self._slabs[slab]) and not rest else None


def cut(runs: Sequence[torch.Tensor], most: int) -> Iterator[list[torch.Tensor]]:
    """The same rows in pieces of up to `most`."""
    piece: list[torch.Tensor] = []
    room = most
    for run in runs:
        while len(run):
            piece.append(run[:room])
            run, room = run[room:], room - len(piece[-1])
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


@dataclass(slots=True)
class CudaCopy:
    """What is left to do of a copy; whoever waits for it does it."""

    finish: "Callable[[CudaCopy], Sequence[bytes | memoryview]]"
    seconds: float | None = None
    """What the transfer took by itself, once it is over."""

    @torch.inference_mode()
    def wait(self) -> Sequence[bytes | memoryview]:
        return self.finish(self)


class InboundPiece(NamedTuple):
    """One piece on its way in."""

    begun: torch.cuda.Event
    copied: torch.cuda.Event
    scattered: torch.cuda.Event


class BlockCopies:
    """Transfers have streams apart from those that gather and scatter: the latter wait for steps, and no transfer for them."""

    def __init__(self, cache: KVCache, device: torch.device) -> None:
        self._cache = cache
        self._device = device
        streams = [torch.cuda.Stream(device) for _ in range(4)]  # type: ignore[no-untyped-call]
        self._gather, self._out, self._in, self._scatter = streams
        self._rows: PinnedRows | None = None
        self._pieces: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        """Room for what comes in, the one used longest ago first, with the event after which it is free."""
        self._lock = Lock()

    def pin(self, num_bytes: int) -> None:
        """Take so much host memory, and some for copies under way; have the kernels compiled that copies begin and end with."""
        row_bytes = self._cache.block_bytes
        self._rows = PinnedRows(num_bytes // row_bytes + MAX_IN_FLIGHT, row_bytes)
        self._cache.scatter([0], self._cache.gather([0]))

    @torch.inference_mode()
    def begin_read(self, blocks: Sequence[int], *, is_fenced: bool) -> CudaCopy:
        steps = torch.cuda.current_stream(self._device)
        self._gather.wait_stream(steps)
        with torch.cuda.stream(self._gather):
            staged = self._cache.gather(blocks)
            gathered = self._gather.record_event()
        if is_fenced:
            steps.wait_event(gathered)
        return CudaCopy(lambda copy: self._finish_read(staged, gathered))

    def _finish_read(self, staged: torch.Tensor, gathered: torch.cuda.Event) -> Sequence[bytes | memoryview]:
        """What was gathered is kept until it is over: nothing else takes its memory."""
        rows = [] if self._rows is None else self._rows.take(len(staged))
        self._out.wait_event(gathered)
        with torch.cuda.stream(self._out):
            if self._rows is not None:
                self._rows.fill(rows, staged)
            rest = staged[len(rows) :].cpu() if len(rows) < len(staged) else None
            over = self._out.record_event()
            lent: list[bytes | memoryview] = [] if self._rows is None else [self._rows.lend(row) for row in rows]
            over.synchronize()
        return lent if rest is None else lent + [row.tobytes() for row in rest.numpy()]

    def begin_write(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> CudaCopy:
        """Rows of pinned memory are on their way at once; what lies elsewhere, once somebody waits for it."""
        launched = torch.cuda.current_stream(self._device).record_event()
        runs = None if self._rows is None else self._rows.runs(contents)
        if runs is not None:
            entered = self._enter(blocks, runs, launched)
            return CudaCopy(lambda copy: self._finish_write(copy, entered, contents))
        return CudaCopy(
            lambda copy: self._finish_write(copy, self._enter(blocks, _pinned(contents), launched), contents)
        )

    @torch.inference_mode()
    def _enter(
        self, blocks: Sequence[int], runs: Sequence[torch.Tensor], launched: torch.cuda.Event
    ) -> list[InboundPiece]:
        """Each piece goes where one was that has been scattered since."""
        transfers = []
        first = 0
        with self._lock:
            if not self._pieces:
                num_rows = max(PIECE_BYTES // self._cache.block_bytes, 1)
                shape = (NUM_PIECES, num_rows, self._cache.block_bytes)
                rooms = torch.empty(shape, dtype=torch.uint8, device=self._device)
                self._pieces.extend((room, torch.cuda.Event()) for room in rooms)  # type: ignore[no-untyped-call]
                self._in.wait_stream(torch.cuda.current_stream(self._device))
            self._scatter.wait_event(launched)
            for parts in cut(runs, len(self._pieces[0][0])):
                room, scattered = self._pieces[0]
                self._pieces.rotate(-1)
                begun, copied = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                place = 0
                with torch.cuda.stream(self._in):
                    self._in.wait_event(scattered)
                    begun.record(self._in)
                    for part in parts:
                        room[place : place + len(part)].copy_(part, non_blocking=True)
                        place += len(part)
                    copied.record(self._in)
                with torch.cuda.stream(self._scatter):
                    self._scatter.wait_event(copied)
                    self._cache.scatter(blocks[first : first + place], room[:place])
                    scattered.record(self._scatter)
                first += place
                transfers.append(InboundPiece(begun, copied, self._scatter.record_event()))
        return transfers

    def _finish_write(
        self, copy: CudaCopy, transfers: list[InboundPiece], contents: Sequence[bytes | memoryview]
    ) -> Sequence[bytes | memoryview]:
        """What is copied from is kept until it is over."""
        transfers[-1].scattered.synchronize()
        copy.seconds = sum(one.begun.elapsed_time(one.copied) for one in transfers) / 1e3
        return ()


def _pinned(contents: Sequence[bytes | memoryview]) -> list[torch.Tensor]:
    """A copy that a GPU can read by itself."""
    rows = torch.empty((len(contents), len(contents[0])), dtype=torch.uint8, pin_memory=True)
    for row, content in zip(rows.numpy(), contents, strict=True):
        row[:] = np.frombuffer(content, dtype=np.uint8)
    return [rows]
