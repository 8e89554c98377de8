"""Sums over ranks of one machine through memory that all of them map: no copy through the kernel, no thread of a library.

Each rank lays down its numbers, wakes the others with a byte each, waits for theirs, and adds all up in the same order: every
rank gets the same bits. Two buffers take turns, so that no rank writes what another still reads:

    exchange n     buffer n % 2     a rank is at most one exchange ahead of any other: it waits for everybody's byte

A rank that dies closes its sockets; one that hangs is given up after `timeout_s`.
"""

import mmap
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from penstock.errors import RankLostError

BUFFER_BYTES = 4 << 20
"""Of one rank; longer arrays are exchanged in pieces."""


class SharedPeers:
    """Ranks `0 .. count` of a folder that only this user may enter."""

    def __init__(self, folder: Path, store: Store, index: int, count: int, timeout_s: float) -> None:
        """Ranks find each other by the store, which is theirs alone."""
        self.index = index
        self.count = count
        self._exchange = 0
        self._sockets = _mesh(folder, store, index, count, timeout_s)
        path = folder / "memory"
        with path.open("a+b") as file:
            file.truncate(2 * count * BUFFER_BYTES)
            self._memory = mmap.mmap(file.fileno(), 2 * count * BUFFER_BYTES)
        self._meet()
        path.unlink(missing_ok=True)

    def all_reduce(self, x: Tensor) -> None:
        sum_in_pieces(x, BUFFER_BYTES, self._exchanged)

    def all_gather(self, x: Tensor) -> Tensor:
        everybody = x.new_empty((self.count, x.numel()))
        flat, most = x.reshape(-1), BUFFER_BYTES // x.element_size()
        for start in range(0, x.numel(), most):
            piece = flat[start : start + most]
            for target, part in zip(everybody, self._exchanged(piece)):
                target[start : start + len(piece)] = part
        return everybody.view(self.count, *x.shape)

    def close(self) -> None:
        for peer in self._sockets:
            peer.close()

    def _exchanged(self, piece: Tensor) -> list[Tensor]:
        """The numbers of all ranks, where they lie; they stay until the exchange after the next."""
        first = self._exchange % 2 * self.count
        self._exchange += 1
        parts = [
            torch.frombuffer(self._memory, dtype=piece.dtype, count=len(piece), offset=(first + rank) * BUFFER_BYTES)
            for rank in range(self.count)
        ]
        parts[self.index].copy_(piece)
        self._meet()
        return parts

    def _meet(self) -> None:
        """Wait until every rank is here."""
        try:
            for peer in self._sockets:
                peer.sendall(b"\1")
            for peer in self._sockets:
                if not peer.recv(1):
                    raise RankLostError("a rank of this group has ended")
        except TimeoutError as error:
            raise RankLostError("a rank of this group did not come to an exchange in time") from error
        except OSError as error:
            raise RankLostError(f"a rank of this group has ended: {error}") from error


def _mesh(folder: Path, store: Store, index: int, count: int, timeout_s: float) -> list[socket.socket]:
    """A connection to every other rank: the later ones call the earlier ones, and say who they are."""
    found: dict[int, socket.socket] = {}
    path = folder / str(index)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.settimeout(timeout_s)
        listener.bind(str(path))
        listener.listen(count)
        store.set(str(index), "listening")
        for other in range(index):
            store.wait([str(other)], timedelta(seconds=timeout_s))
            found[other] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            found[other].settimeout(timeout_s)
            found[other].connect(str(folder / str(other)))
            found[other].sendall(index.to_bytes(4))
        for _ in range(index + 1, count):
            peer, _address = listener.accept()
            peer.settimeout(timeout_s)
            found[int.from_bytes(peer.recv(4))] = peer
    path.unlink()
    return [found[other] for other in sorted(found)]


def sum_in_pieces(x: Tensor, piece_bytes: int, exchanged: Callable[[Tensor], list[Tensor] | Tensor]) -> None:
    """In place, and in the order of ranks, so that all have the same to the bit. `exchanged` gives what each brought."""
    flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
    for piece in flat.split(piece_bytes // x.element_size()):  # type: ignore[no-untyped-call]
        parts = exchanged(piece)
        torch.add(parts[0], parts[1], out=piece)
        for part in parts[2:]:
            piece += part
    if not x.is_contiguous():
        x.copy_(flat.view(x.shape))
