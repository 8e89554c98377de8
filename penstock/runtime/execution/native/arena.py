"""Memory for what native steps read: on large pages where the system has them, and taken only as it is written.

With small pages a step spends a tenth of its products on finding out where the next page lies.
"""

import mmap

import torch
from torch import Tensor

CACHE_LINE = 64


def large_zeros(num_bytes: int) -> Tensor:
    """Bytes; OSError if the system does not promise so many."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Arena:
    """Place for matrices, side by side; it may be asked for generously."""

    def __init__(self, num_bytes: int) -> None:
        try:
            self._left = large_zeros(num_bytes)
        except OSError:
            self._left = torch.empty(0, dtype=torch.uint8)

    def keep(self, numbers: Tensor) -> Tensor:
        """A copy of some bytes, at the beginning of a cache line; where there is no room left, the bytes as they are."""
        num_bytes = -(-numbers.numel() // CACHE_LINE) * CACHE_LINE
        if numbers.dtype != torch.uint8 or num_bytes > len(self._left):
            return numbers
        kept, self._left = self._left[: numbers.numel()], self._left[num_bytes:]
        return kept.copy_(numbers.flatten()).view(numbers.shape)
