"""Host memory that a GPU reads by itself, in pieces that are taken and given back.

To pin memory takes a millisecond for every few megabytes, and launches wait meanwhile: pieces are small, some are ready before
they are asked for, and those given back are used again.
"""

import threading
import weakref
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass, field

import torch
from torch import Tensor

PIECE_BYTES = 4 << 20
SPARE_BYTES = 512 << 20


@dataclass(slots=True, weakref_slot=True)
class PinnedNumbers:
    """Numbers of an adapter, piece after piece. Its pieces are free again when nobody refers to it."""

    pieces: list[Tensor]
    count: int
    copied: list[torch.cuda.Event] = field(default_factory=list)
    """After the last copy from here."""

    @property
    def nbytes(self) -> int:
        return self.count * self.pieces[0].element_size() if self.pieces else 0

    def copy_to(self, target: Tensor) -> None:
        """On the current stream, without waiting."""
        for piece, part in zip(self.pieces, torch.split(target[: self.count], len(self.pieces[0])), strict=True):
            part.copy_(piece[: len(part)], non_blocking=True)
        self.copied[:] = [torch.cuda.current_stream(target.device).record_event()]


class PinnedPieces:
    """From any thread."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._free: deque[tuple[Tensor, list[torch.cuda.Event]]] = deque()
        self._pinning = threading.Lock()

    def pin(self, num_bytes: int) -> None:
        """Have so much ready."""
        with self._pinning:
            while len(self._free) * PIECE_BYTES < num_bytes:
                self._free.append((self._pinned(), []))

    def hold(self, numbers: Tensor, pool: Executor) -> PinnedNumbers:
        """A copy of some numbers."""
        parts = torch.split(numbers, PIECE_BYTES // self._dtype.itemsize)
        held = PinnedNumbers([self._take() for _ in parts], len(numbers))
        list(pool.map(_fill, held.pieces, parts))
        weakref.finalize(held, self._free.extend, [(piece, held.copied) for piece in held.pieces])
        if len(self._free) * PIECE_BYTES < SPARE_BYTES and not self._pinning.locked():
            threading.Thread(target=self.pin, args=(SPARE_BYTES,), daemon=True).start()  # for the next that comes
        return held

    def _take(self) -> Tensor:
        try:
            piece, copied = self._free.popleft()
        except IndexError:
            return self._pinned()
        for event in copied:
            event.synchronize()
        return piece

    def _pinned(self) -> Tensor:
        return torch.empty(PIECE_BYTES // self._dtype.itemsize, dtype=self._dtype, pin_memory=torch.cuda.is_available())


@torch.inference_mode()
def _fill(piece: Tensor, part: Tensor) -> None:
    piece[: len(part)].copy_(part)
