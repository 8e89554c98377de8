"""Sums over ranks that share one GPU, which NCCL refuses: through memory of the card that all of them map.

The first rank's process owns the memory; the others open it by its handle (CUDA IPC). Nothing waits on the host, so that
steps with such sums are recorded and replayed as those of several GPUs are. Processes take turns on the card: this shows that
a layout is right, not how fast it would be.
"""

import json
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from penstock.runtime.execution.parallel.machine.shared import BUFFER_BYTES, sum_in_pieces

WORD = torch.int16
"""Every type of number is made of these."""
WORD_BYTES = 2


class CardPeers:
    def __init__(self, store: Store, index: int, count: int, device: torch.device, timeout_s: float) -> None:
        from penstock.runtime.ops.triton.parallel import exchange  # triton: only where a GPU is

        self.index = index
        self.count = count
        self._kernels = exchange
        self._timeout = timedelta(seconds=timeout_s)
        num_flags = count * exchange.FLAG_STRIDE
        flag_bytes = 8 * num_flags
        self._memory = self._mapped(store, flag_bytes + 2 * count * BUFFER_BYTES, device)
        self._flags = self._memory[:flag_bytes].view(torch.int64)
        self._halves = self._memory[flag_bytes:].view(WORD).view(2, count, BUFFER_BYTES // WORD_BYTES)
        self._exchanges = torch.zeros(1, dtype=torch.int64, device=device)

    def all_reduce(self, x: Tensor) -> None:
        sum_in_pieces(x, BUFFER_BYTES, self._exchanged)

    def all_gather(self, x: Tensor) -> Tensor:
        pieces = x.reshape(-1).split(BUFFER_BYTES // x.element_size())  # type: ignore[no-untyped-call]
        return torch.cat([self._exchanged(piece) for piece in pieces], dim=1).view(self.count, *x.shape)

    def _exchanged(self, piece: Tensor) -> Tensor:
        words = piece.view(WORD)
        return self._kernels.exchange(words, self._halves, self._flags, self._exchanges, self.index).view(piece.dtype)

    def _mapped(self, store: Store, num_bytes: int, device: torch.device) -> Tensor:
        """The same zeros for all ranks."""
        if self.index == 0:
            memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
            torch.cuda.synchronize()
            handle = memory.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
            store.set("handle", json.dumps([_encoded(part) for part in handle]))
            store.wait([f"open/{index}" for index in range(1, self.count)], self._timeout)
            return memory
        store.wait(["handle"], self._timeout)
        handle = json.loads(store.get("handle"))
        opened = torch.UntypedStorage._new_shared_cuda(*(_decoded(part) for part in handle))
        store.set(f"open/{self.index}", "")
        return torch.empty(0, dtype=torch.uint8, device=device).set_(opened)


def _encoded(part: Any) -> Any:
    return {"hex": part.hex()} if isinstance(part, bytes) else part


def _decoded(part: Any) -> Any:
    return bytes.fromhex(part["hex"]) if isinstance(part, dict) else part
