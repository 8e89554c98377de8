"""All-reduces between ranks of one machine as they were timed, and the link that explains them: a wait and a rate.

seconds of a sum over two ranks  =  2 latency + bytes / bandwidth        (as `layout.all_reduce_s` has it)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.tools.cost.hardware import Link, LinkKind

MIN_RATE, MAX_RATE = 1e5, 1e13
MAX_SUM_S = 60.0


class TimedSum(NamedTuple):
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Of two ranks of a machine, by size."""

    through: str
    """What numbers pass: shared memory, gloo or nccl."""
    timed: tuple[TimedSum, ...]

    def __post_init__(self) -> None:
        if len({each.size_bytes for each in self.timed}) < 2:
            raise ValueError("a link is fitted to two sizes at least")
        if any(not (each.size_bytes > 0 and 0.0 < each.seconds < MAX_SUM_S) for each in self.timed):
            raise ValueError("a size or a time is out of range")

    def link(self, kind: LinkKind) -> Link:
        """Fitted so that the squares of relative errors are least: a short sum counts as much as a long one."""
        wait_s, byte_s = fitted_line(self.timed)
        return Link(kind, 1.0 / byte_s, wait_s / 2)

    @property
    def error(self) -> float:
        """The largest relative error of the fit on what was timed."""
        wait_s, byte_s = fitted_line(self.timed)
        return max(abs(wait_s + byte_s * each.size_bytes - each.seconds) / each.seconds for each in self.timed)

    def as_data(self) -> dict[str, Any]:
        link = self.link("socket")
        return {
            "through": self.through,
            "timed": [list(each) for each in self.timed],
            "latency_s": link.latency_s,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        }


def read_all_reduce(data: Mapping[str, Any]) -> AllReduce:
    """As it was written; ValueError, TypeError or KeyError if it cannot be. The fit is made again."""
    return AllReduce(str(data["through"]), tuple(TimedSum(int(size), float(time)) for size, time in data["timed"]))


def fitted_line(timed: Sequence[TimedSum]) -> tuple[float, float]:
    """Seconds at no bytes, and seconds a byte; neither is negative.

    With weights 1 / seconds the two unknowns of least squares follow from five sums.
    """
    rows = [(1.0 / seconds, size / seconds) for size, seconds in timed]
    aa, bb = sum(one * one for one, _ in rows), sum(other * other for _, other in rows)
    ab = sum(one * other for one, other in rows)
    a, b = sum(one for one, _ in rows), sum(other for _, other in rows)
    determinant = aa * bb - ab * ab
    wait_s, byte_s = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if wait_s < 0.0 or not math.isfinite(wait_s):
        wait_s, byte_s = 0.0, b / bb
    return wait_s, min(max(byte_s, 1.0 / MAX_RATE), 1.0 / MIN_RATE)
