"""An adapter's numbers made ready for the sublayers they go to, before there is a slot for them.

They lie as they will on the device, one behind another, so that a slot is filled by one copy.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from penstock.errors import ModelFileError
from penstock.runtime.execution.adapters.pinned import PinnedNumbers, PinnedPieces
from penstock.runtime.execution.load.adapters import TABLES, Adapter, ReadyAdapter, reading_threads
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.layers.adapted.linear import LoraLinear
from penstock.runtime.layers.adapted.table import LoraTable
from penstock.runtime.ops.grouped.lora import RANK_STEP

IDENTITY_ROWS = 512
_SCRATCH = threading.local()


class FileLayout(NamedTuple):
    """Of files that are laid out alike. `moves` and `scales` are as `lay_matrices` has them, on the device."""

    kind: torch.dtype
    rank: int
    base: str
    places: Tensor
    moves: Tensor
    scales: Tensor


@dataclass(frozen=True, slots=True)
class PreparedAdapter(ReadyAdapter):
    """What a slot is filled with."""

    adapter: Adapter
    """What of it lies in no slot's memory: tables and experts, and changes of tables."""
    rank: int
    numbers: Tensor | PinnedNumbers
    """[numbers]: of every linear it changes A and B, in the model's own numbers; or bytes of the file they lie in."""
    places: Tensor
    """int32 [linears, 4], as `LoraBank` has them."""
    factors: Tensor | None = None
    """float32 [outputs of all linears], where it is a DoRA."""
    layout: FileLayout | None = None
    """Where its numbers are a file's own: where they go."""

    @property
    def num_bytes(self) -> int:
        return self.numbers.nbytes + self.adapter.num_bytes


def rounded_rank(rank: int) -> int:
    return -(-rank // RANK_STEP) * RANK_STEP


class LinearPlace(NamedTuple):
    """Where the matrices of one linear go in a slot, and what they are there."""

    linear: int
    parts: tuple[LowRank | None, ...]
    """Of each of the modules it was joined from."""
    sizes: Sequence[int]
    rank: int
    """Rounded up."""
    at: int
    """A, then B."""
    first: int
    """The first of its outputs, among those of all linears."""

    @property
    def columns(self) -> int:
        return next(part.right.shape[1] for part in self.parts if part is not None)

    @property
    def at_b(self) -> int:
        return self.at + self.rank * len(self.sizes) * self.columns

    @property
    def end(self) -> int:
        return self.at_b + self.rank * sum(self.sizes)

    @property
    def is_scaled(self) -> bool:
        return any(part is not None and part.scales is not None for part in self.parts)


def placed(adapter: Adapter, linears: Mapping[str, LoraLinear], most_rank: int) -> list[LinearPlace]:
    """Of every linear that an adapter changes, one behind another."""
    found: list[LinearPlace] = []
    at = first = 0
    for number, (name, linear) in enumerate(linears.items()):
        if name in adapter.changes:
            parts = adapter.changes[name]
            rank = rounded_rank(max(part.rank for part in parts if part is not None))
            if rank > most_rank:
                raise ModelFileError(f"{name} is changed by rank {rank}; at most {most_rank} (--max-adapter-rank)")
            found.append(LinearPlace(number, parts, linear.sizes, rank, at, first))
            at = found[-1].end
        first += sum(linear.sizes)
    return found


def places_of(placements: Sequence[LinearPlace], num_linears: int) -> Tensor:
    """int32 [linears, 4], as `LoraBank` has them."""
    places = torch.zeros((num_linears, 4), dtype=torch.int32)
    for one in placements:
        places[one.linear] = torch.tensor([one.rank, one.at, one.at_b, one.is_scaled])
    return places


def pack(
    adapter: Adapter,
    linears: Mapping[str, LoraLinear],
    most_rank: int,
    like: Tensor,
    pinned: PinnedPieces | None = None,
) -> PreparedAdapter:
    """In numbers like one of the model's, in memory a GPU can read by itself."""
    placements = placed(adapter, linears, most_rank)
    total = placements[-1].end if placements else 0
    numbers = torch.empty(total, dtype=like.dtype) if pinned is None else _scratch(total, like.dtype)
    factors = None
    if any(one.is_scaled for one in placements):
        factors = torch.ones(sum(sum(linear.sizes) for linear in linears.values()))
        for one in placements:
            for part in one.parts:
                if part is not None and part.scales is not None:
                    factors[one.first + part.first : one.first + part.rows.stop] = part.scales
    with reading_threads() as pool:
        list(pool.map(lambda one: _lay(one, numbers), placements))
        held = numbers if pinned is None else pinned.hold(numbers, pool)
    places = places_of(placements, len(linears))
    if pinned is not None:
        places, factors = places.pin_memory(), None if factors is None else factors.pin_memory()
    rest = replace(adapter, changes={name: parts for name, parts in adapter.changes.items() if name in TABLES})
    return PreparedAdapter(rest, adapter.rank, held, places, factors)


def _scratch(count: int, dtype: torch.dtype) -> Tensor:
    """Memory of this thread's own, used again and again: fresh memory takes longer to come by than to fill."""
    held: Tensor | None = getattr(_SCRATCH, "numbers", None)
    if held is None or len(held) < count:
        held = _SCRATCH.numbers = torch.empty(count, dtype=dtype)
    return held[:count]


@torch.inference_mode()
def _lay(one: LinearPlace, numbers: Tensor) -> None:
    """Zeros where there is no change, and beyond its rank."""
    rows = numbers[one.at : one.at_b].view(len(one.sizes), one.rank, -1)
    b, first = numbers[one.at_b : one.end].view(-1, one.rank), 0
    for number, (part, size) in enumerate(zip(one.parts, one.sizes, strict=True)):
        rank, own = 0 if part is None else part.rank, b[first : first + size]
        if part is not None:  # by way of float32, which is several times as fast from one short kind to another
            rows[number, :rank] = part.right.float()
            own[:, :rank] = part.left.float()
        rows[number, rank:] = 0.0
        own[:, rank:] = 0.0
        first += size


def like_of(module: nn.Module) -> Tensor:
    """A number of the type a sublayer computes in, where it computes."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.dtype.is_floating_point:
        return weight
    dtype = getattr(module, "dtype", None)
    device = next(module.parameters()).device
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.empty(0, dtype=dtype, device=device)


def squares_with(matrix: LoraLinear | LoraTable, change: LowRank) -> Tensor:
    """Squared lengths of a matrix's rows with a change added; those of its own rows are found once.

    |w + ba|^2 = |w|^2 + 2 b (A w) + b (A A^T) b
    """
    plain = matrix.linear if isinstance(matrix, LoraLinear) else matrix.table
    if matrix.squares is None:
        matrix.squares = row_squares(plain, change.right.shape[1])
    squares = matrix.squares
    left, right = change.left.to(squares.device), change.right.to(squares.device)
    rows = slice(change.first, change.rows.stop)
    crossed = torch.cat([part[:, rows] for part in _images(plain, right)])
    inner = right @ right.t()
    return squares[rows] + 2 * (left * crossed.t()).sum(1) + ((left @ inner) * left).sum(1)


def row_squares(module: nn.Module, columns: int) -> Tensor:
    """The squared length of every row of a matrix, which may be packed: then from what it makes of one input at a time."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):
        return torch.cat([part.float().square().sum(1) for part in torch.split(weight, IDENTITY_ROWS)])
    inputs = torch.eye(columns, device=like_of(module).device)
    return torch.stack([part.square().sum(0) for part in _images(module, inputs)]).sum(0)


def _images(module: nn.Module, rows: Tensor) -> Iterator[Tensor]:
    """What the matrix makes of some rows, without a bias."""
    dtype = like_of(module).dtype
    weight = getattr(module, "weight", None)
    bias = getattr(module, "bias", None)
    for part in torch.split(rows, IDENTITY_ROWS):
        if isinstance(weight, Tensor):
            yield (part.to(weight.dtype) @ weight.t()).float() if weight.is_cuda else part @ weight.float().t()
        else:
            made = module.scores(part.to(dtype)) if not hasattr(module, "forward") else module(part.to(dtype))  # type: ignore[operator]
            yield (made if bias is None else made - bias).float()
