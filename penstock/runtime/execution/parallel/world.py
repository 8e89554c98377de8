"""The ranks of one engine as one of them sees them: who shares a layer with it, who comes before and after it.

Owns every connection between ranks. They meet at a store that the first rank holds; groups are made of it without touching
torch's global one, so that several worlds may live in one process. Nothing here knows a model.

    everybody    frames from the first rank to all, in order
    tensor       ranks that hold the parts of the same heads and columns
    stage        ranks of the same layers
    pipe         hidden states to the stage after, tokens back to the first
"""

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

from penstock.errors import ConfigError, RankLostError
from penstock.runtime.execution.parallel.machine.card import CardPeers
from penstock.runtime.execution.parallel.machine.shared import SharedPeers
from penstock.runtime.models.ranks import RankPlace
from penstock.runtime.ops.parallel.collective import Alone, Peers

FRAME_BYTES = 16 << 10
"""Of the first part of a frame; what is longer takes a second."""
LENGTH_BYTES = 8
PATIENT = timedelta(days=365)
"""An engine may have nothing to do for as long as it likes."""
JOIN_S = 120.0
MAX_SENDING = 16
"""Sent at once; before more is sent the oldest has arrived."""

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where ranks meet, and what they exchange numbers by."""

    host: str
    port: int
    here: str = "127.0.0.1"
    """The address of this rank's machine, by which the others reach it."""
    folder: str | None = None
    """Known to all ranks of this machine: those that share layers are on one, and share memory if they compute on its CPU."""
    step_s: float = 60.0
    """How long a rank waits for another in the middle of a step."""
    shares_gpu: bool = False
    """Ranks of this machine compute on one GPU."""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class GroupPeers:
    """Ranks of a torch process group."""

    def __init__(self, group: Any, index: int, count: int) -> None:
        self.index = index
        self.count = count
        self._group = group

    def all_reduce(self, x: Tensor) -> None:
        whole = x.contiguous()
        _wait(self._group.allreduce([whole]))
        if whole is not x:
            x.copy_(whole)

    def all_gather(self, x: Tensor) -> Tensor:
        everybody = x.new_empty((self.count, *x.shape))
        _wait(self._group._allgather_base(everybody.view(-1), x.contiguous().view(-1)))
        return everybody


class World:
    """Joining waits for all ranks. Every rank calls the same methods in the same order, but for those of the pipe."""

    def __init__(
        self, place: RankPlace, rendezvous: Rendezvous, device: torch.device, store: Store | None = None
    ) -> None:
        """The first rank made the store; the others call it."""
        self.place = place
        self.device = device
        self._rendezvous = rendezvous
        self._backend: Backend = "nccl" if device.type == "cuda" and not rendezvous.shares_gpu else "gloo"
        self._pipe_device = device if self._backend == "nccl" else torch.device("cpu")
        self.store = store or open_store(rendezvous.host, rendezvous.port, is_host=False)
        self._sending: deque[tuple[Any, Tensor]] = deque()
        """What is on its way, and the memory it is sent from."""
        ranks = place.ranks
        everyone = list(range(ranks.num_ranks))
        self._control = self._gloo("control", everyone, PATIENT)
        if ranks.pipeline > 1:
            self._pipe = self._group("pipe", everyone)
            self._replies = self._gloo("replies", everyone, PATIENT)
        first = place.stage * ranks.per_stage
        copy = place.column // ranks.tensor
        self.tensor = self._peers(
            f"tensor.{place.stage}.{copy}", [first + copy * ranks.tensor + i for i in range(ranks.tensor)]
        )
        self.stage = self._peers(f"stage.{place.stage}", [first + i for i in range(ranks.per_stage)])

    def close(self) -> None:
        """What is on its way arrives first, unless those it goes to are gone."""
        with contextlib.suppress(RankLostError):
            while self._sending:
                _wait(self._sending.popleft()[0])
        for peers in (self.tensor, self.stage):
            if isinstance(peers, SharedPeers):
                peers.close()

    # Frames

    def broadcast(self, frame: bytes) -> None:
        """Give every other rank a frame; for the first rank."""
        for piece in _pieces(frame):
            _wait(self._control.broadcast(piece, 0))

    def recv_broadcast(self) -> bytes:
        """The next frame; for all ranks but the first."""
        return _whole(lambda piece: _wait(self._control.broadcast(piece, 0)))

    def send_reply(self, frame: bytes) -> None:
        """Send a frame from the last stage to the rank of the same column in the first; it is on its way when this returns."""
        for piece in _pieces(frame):
            self._send(self._replies, piece, self.place.column)

    def recv_reply(self) -> bytes:
        """The next reply from the last stage."""
        ranks = self.place.ranks
        last = (ranks.pipeline - 1) * ranks.per_stage + self.place.column
        return _whole(lambda piece: _wait(self._replies.recv([piece], last, 0)))

    # The pipe

    def send(self, hidden: Tensor) -> None:
        """Send hidden states to the rank of the same column a stage later; they are on their way when this returns."""
        self._send(self._pipe, hidden.to(self._pipe_device).contiguous(), self.place.rank + self.place.ranks.per_stage)

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Hidden states from the stage before."""
        hidden = torch.empty(shape, dtype=dtype, device=self._pipe_device)
        _wait(self._pipe.recv([hidden], self.place.rank - self.place.ranks.per_stage, 0))
        return hidden.to(self.device)

    def _send(self, group: Any, values: Tensor, rank: int) -> None:
        while len(self._sending) >= MAX_SENDING:
            _wait(self._sending.popleft()[0])
        self._sending.append((group.send([values], rank, 0), values))

    # Groups

    def _peers(self, name: str, ranks: list[int]) -> Peers:
        if len(ranks) == 1:
            return Alone()
        index, folder = ranks.index(self.place.rank), self._rendezvous.folder
        if folder is not None and self.device.type == "cpu":
            home = Path(folder) / name
            home.mkdir(mode=0o700, exist_ok=True)
            return SharedPeers(home, PrefixStore(name, self.store), index, len(ranks), self._rendezvous.step_s)
        if self._rendezvous.shares_gpu and self.device.type == "cuda":
            store = PrefixStore(name, self.store)
            return CardPeers(store, index, len(ranks), self.device, self._rendezvous.step_s)
        return GroupPeers(self._group(name, ranks), index, len(ranks))

    def _group(self, name: str, ranks: list[int]) -> Any:
        step = timedelta(seconds=self._rendezvous.step_s)
        if self._backend == "gloo":
            return self._gloo(name, ranks, step)
        from torch.distributed import ProcessGroupNCCL  # only builds for GPUs have it

        options = ProcessGroupNCCL.Options()
        options._timeout = step
        store = PrefixStore(name, self.store)
        return ProcessGroupNCCL(store, ranks.index(self.place.rank), len(ranks), options)

    def _gloo(self, name: str, ranks: list[int], timeout: timedelta) -> Any:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._rendezvous.here)]
        options._timeout = timeout
        options._threads = 1
        store = PrefixStore(name, self.store)
        return ProcessGroupGloo(store, ranks.index(self.place.rank), len(ranks), options)


def open_store(host: str, port: int, *, is_host: bool) -> TCPStore:
    """The place where ranks meet; the host may ask for any port by 0. It listens on that address alone."""
    timeout = timedelta(seconds=JOIN_S)
    if not is_host:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"ranks cannot meet at {host}:{port}: {error.strerror}; choose another address") from error
    port, number = listener.getsockname()[1], listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=number)


def _pieces(frame: bytes) -> list[Tensor]:
    """A head of fixed size that begins with the frame's length, and what is left."""
    head = (len(frame).to_bytes(LENGTH_BYTES) + frame)[:FRAME_BYTES].ljust(FRAME_BYTES, b"\0")
    rest = frame[FRAME_BYTES - LENGTH_BYTES :]
    return [torch.frombuffer(bytearray(piece), dtype=torch.uint8) for piece in (head, rest) if piece]


def _whole(receive: Callable[[Tensor], None]) -> bytes:
    head = torch.empty(FRAME_BYTES, dtype=torch.uint8)
    receive(head)
    begun: bytes = head.numpy().tobytes()
    length = int.from_bytes(begun[:LENGTH_BYTES])
    frame = begun[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(frame) < length:
        rest = torch.empty(length - len(frame), dtype=torch.uint8)
        receive(rest)
        frame += rest.numpy().tobytes()
    return frame


def _wait(work: Any) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise RankLostError(f"a rank of this engine has ended or hangs: {error}") from error
