"""Products of two thin matrices carried through a recipe: what becomes of a change to a checkpoint's tensor when the tensor
becomes rows, columns or experts of a parameter. The base's own recipes say where the change goes; nothing is multiplied out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.models import weights as recipes


@dataclass(frozen=True, slots=True)
class LowRank:
    """`left` [rows, rank] times `right` [rank, columns], laid at rows `first` .. of a matrix."""

    left: Tensor
    right: Tensor
    first: int = 0
    scales: Tensor | None = None
    """[rows]: DoRA's magnitudes of those rows."""

    @property
    def rows(self) -> range:
        return range(self.first, self.first + len(self.left))

    @property
    def rank(self) -> int:
        return self.left.shape[1]

    def at(self, first: int) -> "LowRank":
        return LowRank(self.left, self.right, first, self.scales)

    def floats(self) -> "LowRank":
        return LowRank(self.left.float(), self.right.float(), self.first, self.scales)

    def taken(self, index: slice | Tensor) -> "LowRank":
        scales = None if self.scales is None else self.scales[index]
        return LowRank(self.left[index], self.right, self.first, scales)


Find = Callable[[str], LowRank | None]
"""The change to a tensor of the checkpoint; None if it has none."""


def follow(recipe: recipes.Recipe, find: Find, sizes: Sequence[int]) -> list[LowRank]:
    """The changes to a matrix that a recipe makes; `sizes` are the rows of its parts where it has several."""
    match recipe:
        case recipes.Tensor(name):
            found = find(name)
            return [] if found is None else [found]
        case recipes.Concat(parts, axis=0):
            placed, first = [], 0
            for part, size in zip(parts, sizes, strict=True):
                for change in follow(part, find, (size,)):
                    _check_rows(change, size)
                    placed.append(change.at(first))
                first += size
            return placed
        case recipes.Take(part, start, stop, step, axis=0):
            return [change.taken(slice(start, stop, step)) for change in follow(part, find, sizes)]
        case recipes.Take(part, start, stop, step, axis=1):
            changes = follow(part, find, sizes)
            return [LowRank(one.left, one.right[:, start:stop:step], one.first, one.scales) for one in changes]
        case recipes.Swap(part):
            return [LowRank(one.right.t(), one.left.t(), 0, one.scales) for one in follow(part, find, sizes)]
        case recipes.HalvesPaired(part, num_heads):
            return [one.taken(halves_order(len(one.left), num_heads)) for one in follow(part, find, sizes)]
        case _:
            raise ModelFileError(f"an adapter cannot change a matrix made by {type(recipe).__name__}")


def halves_order(num_rows: int, num_heads: int) -> Tensor:
    """Rows of neighbours paired, in the order of halves paired."""
    if num_rows % (2 * num_heads):
        raise ModelFileError(
            f"{num_rows} rows do not make {num_heads} heads of pairs; the adapter is for another model"
        )
    return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).flatten()


def fit(changes: Sequence[LowRank], bounds: Sequence[int]) -> list[LowRank | None]:
    """One change for each run of rows between two bounds. Several in one run become one of their ranks' sum."""
    fitted: list[LowRank | None] = []
    for begin, end in pairwise(bounds):
        inside = [_cut(change, begin, end) for change in changes if change.first < end and change.rows.stop > begin]
        if len(inside) > 1 or (inside and len(inside[0].left) < end - begin):
            fitted.append(_joined(inside, begin, end))
        else:
            fitted.append(inside[0] if inside else None)
    return fitted


def _cut(change: LowRank, begin: int, end: int) -> LowRank:
    low, high = max(begin, change.first), min(end, change.rows.stop)
    return change.taken(slice(low - change.first, high - change.first)).at(low)


def _joined(changes: Sequence[LowRank], begin: int, end: int) -> LowRank:
    rank = sum(change.rank for change in changes)
    left = torch.zeros((end - begin, rank), dtype=torch.float32)
    at = 0
    for change in changes:
        left[change.first - begin : change.rows.stop - begin, at : at + change.rank] = change.left
        at += change.rank
    if any(change.scales is not None for change in changes):
        raise ModelFileError("DoRA over parts of one matrix is not served; train it over all of them")
    return LowRank(left, torch.cat([change.right.float() for change in changes]), begin)


def _check_rows(change: LowRank, size: int) -> None:
    if len(change.left) != size:
        raise ModelFileError(
            f"a matrix of {size} rows is changed in {len(change.left)}; the adapter is for another base"
        )
