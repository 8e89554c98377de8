"""What ranks compute together: sums, columns put side by side, the best of all.

Who the others are, and how they are reached, is behind `Peers`. Each operation gives the same numbers to every rank, to the
bit: what ranks decide from them they decide alike, without asking.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.op import operation


class Peers(Protocol):
    """The ranks that share one computation, seen by one of them. All call the same methods in the same order."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def all_reduce(self, x: Tensor) -> None:
        """`x` becomes the sum of all ranks' values."""

    def all_gather(self, x: Tensor) -> Tensor:
        """[count, *x.shape]: the values of every rank, all of one shape."""


IS_REHEARSED: ContextVar[bool] = ContextVar("is_rehearsed", default=False)


@contextmanager
def rehearsed() -> Iterator[None]:
    """Exchanges in here give numbers of the right shape and reach nobody: ranks may do this at times of their own."""
    token = IS_REHEARSED.set(True)
    try:
        yield
    finally:
        IS_REHEARSED.reset(token)


class Alone:
    """A world of one."""

    index = 0
    count = 1

    def all_reduce(self, x: Tensor) -> None:
        """Its own is the sum."""

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None]


@operation
def all_reduce(x: Tensor, peers: Peers) -> Tensor:
    """The sum of everybody's `x`, which is written."""
    if peers.count > 1 and not IS_REHEARSED.get():
        peers.all_reduce(x)
    return x


@operation
def all_gather_columns(x: Tensor, peers: Peers, widths: tuple[int, ...]) -> Tensor:
    """The columns of all ranks side by side; `widths` are how many each has."""
    if peers.count == 1:
        return x
    most = max(widths)
    parts = _gathered(functional.pad(x, (0, most - x.shape[1])) if x.shape[1] < most else x.contiguous(), peers)
    if min(widths) == most:
        return parts.transpose(0, 1).flatten(1)
    return torch.cat([part[:, :width] for part, width in zip(parts, widths)], dim=1)


@operation
def all_reduce_likeliest(scores: Tensor, start: int, peers: Peers) -> tuple[Tensor, Tensor]:
    """For each row the place of the highest score of all ranks, the first of equals, and whether all are finite.

    `scores` are some of the columns, the first of which is number `start`; ranks hold them in order.
    """
    best, places = scores.float().max(dim=1)
    finite = torch.isfinite(scores.sum(1, dtype=torch.float32))
    # float64 holds any score and any place exactly: one exchange carries all three.
    reported = torch.stack((best.double(), (places + start).double(), finite.double()), dim=1)
    everybody = _gathered(reported, peers)
    winner = everybody[:, :, 0].argmax(dim=0)
    chosen = everybody[:, :, 1].gather(0, winner[None])[0].long()
    return chosen, everybody[:, :, 2].amin(dim=0) > 0


def _gathered(x: Tensor, peers: Peers) -> Tensor:
    return x.expand(peers.count, *x.shape) if IS_REHEARSED.get() else peers.all_gather(x)
