"""Blocks between a GPU's cache and pinned host memory, on streams of their own: steps go on beside them.

    out   gather [blocks, bytes] on the device  ->  rows of pinned memory
    in    rows of pinned memory                 ->  [blocks, bytes] on the device, scattered into the cache

A gather or scatter is ordered after the steps launched before it. Only a fenced one makes later steps wait, and only for the
gather: after that its blocks may be written.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from penstock.runtime.execution.kv_cache import KVCache

SLAB_BYTES = 1 << 30
"""Pinned memory is given in powers of two: in pieces of one, little of it is wasted."""
MAX_IN_FLIGHT = 256
"""Rows beyond those of a full host tier: copies whose records are not kept yet."""


class PinnedRows:
    """Host memory that a GPU reads and writes by itself, in rows of a block. A row is free again when nobody refers to it."""

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self._slab_rows = max(SLAB_BYTES // row_bytes, 1)
        counts = [min(self._slab_rows, num_rows - begin) for begin in range(0, num_rows, self._slab_rows)]
        self._slabs = [torch.empty((count, row_bytes), dtype=torch.uint8, pin_memory=True) for count in counts]
        self._arrays = [slab.numpy() for slab in self._slabs]
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
        for (slab, _), run in groupby(enumerate(rows), lambda pair: (pair[1] // self._slab_rows, pair[1] - pair[0])):
            pairs = list(run)
            (place, row), count = pairs[0], len(pairs)
            target = self._slabs[slab][row % self._slab_rows :][:count]
            target.copy_(staged[place : place + count], non_blocking=True)


class CudaCopy:
    """What is left to do of a copy; whoever waits for it does it."""

    def __init__(self, finish: "Callable[[CudaCopy], Sequence[bytes | memoryview]]") -> None:
        self._finish = finish
        self.seconds: float | None = None
        """What the transfer took by itself, once it is over."""

    @torch.inference_mode()
    def wait(self) -> Sequence[bytes | memoryview]:
        return self._finish(self)


class BlockCopies:
    """Transfers have streams apart from those that gather and scatter: the latter wait for steps, and no transfer for them."""

    def __init__(self, cache: KVCache, device: torch.device) -> None:
        self._cache = cache
        self._device = device
        streams = [torch.cuda.Stream(device) for _ in range(4)]  # type: ignore[no-untyped-call]
        self._gather, self._out, self._in, self._scatter = streams
        self._rows: PinnedRows | None = None

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
        launched = torch.cuda.current_stream(self._device).record_event()
        return CudaCopy(lambda copy: self._finish_write(copy, tuple(blocks), contents, launched))

    def _finish_write(
        self, copy: CudaCopy, blocks: Sequence[int], contents: Sequence[bytes | memoryview], launched: torch.cuda.Event
    ) -> Sequence[bytes | memoryview]:
        begun, copied = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._in):
            staged = torch.empty((len(blocks), self._cache.block_bytes), dtype=torch.uint8, device=self._device)
            begun.record(self._in)
            for place, content in enumerate(contents):
                is_pinned = isinstance(content, memoryview)
                row = torch.frombuffer(content if is_pinned else bytearray(content), dtype=torch.uint8)
                staged[place].copy_(row, non_blocking=is_pinned)
            copied.record(self._in)
        self._scatter.wait_event(copied)
        self._scatter.wait_event(launched)
        with torch.cuda.stream(self._scatter):
            self._cache.scatter(blocks, staged)
            self._scatter.record_event().synchronize()
        copy.seconds = begun.elapsed_time(copied) / 1e3
        return ()
