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
    num_bytes: int
    copied: list[torch.cuda.Event] = field(default_factory=list)
    """After the last copy from here."""

    @property
    def nbytes(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def copy_to(self, target: Tensor) -> None:
        """On the current stream, without waiting."""
        parts = torch.split(target.view(torch.uint8)[: self.num_bytes], PIECE_BYTES)
        for piece, part in zip(self.pieces, parts, strict=True):
            part.copy_(piece[: len(part)], non_blocking=True)
        if target.is_cuda:
            self.copied[:] = [torch.cuda.current_stream(target.device).record_event()]


class PinnedPieces:
    """From any thread. Where there is no GPU, memory is as any other."""

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._free: deque[tuple[Tensor, list[torch.cuda.Event]]] = deque()
        self._pinning = threading.Lock()

    def pin(self, num_bytes: int) -> None:
        """Have so much ready."""
        with self._pinning:
            while len(self._free) * PIECE_BYTES < num_bytes:
                self._free.append((self._pinned(), []))

    def take(self, num_bytes: int) -> PinnedNumbers:
        """Room for so much."""
        if not self._is_pinned:
            return PinnedNumbers(list(torch.split(torch.empty(num_bytes, dtype=torch.uint8), PIECE_BYTES)), num_bytes)
        held = PinnedNumbers([self._take() for _ in range(-(-num_bytes // PIECE_BYTES))], num_bytes)
        weakref.finalize(held, self._free.extend, [(piece, held.copied) for piece in held.pieces])
        if len(self._free) * PIECE_BYTES < SPARE_BYTES and not self._pinning.locked():
            threading.Thread(target=self.pin, args=(SPARE_BYTES,), daemon=True).start()  # for the next that comes
        return held

    def hold(self, numbers: Tensor, pool: Executor) -> PinnedNumbers:
        """A copy of some numbers."""
        held = self.take(numbers.nbytes)
        list(pool.map(_fill, held.pieces, torch.split(numbers.view(torch.uint8), PIECE_BYTES)))
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
        return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)


@torch.inference_mode()
def _fill(piece: Tensor, part: Tensor) -> None:
    piece[: len(part)].copy_(part)
