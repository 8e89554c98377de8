"""An adapter's numbers made ready for the sublayers they go to, before there is a slot for them.

They lie as they will on the device, one behind another, so that a slot is filled by one copy.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from penstock.errors import ModelFileError
from penstock.runtime.execution.adapters.pinned import PinnedNumbers, PinnedPieces
from penstock.runtime.execution.load.adapters import TABLES, Adapter, reading_threads
from penstock.runtime.execution.load.low_rank import LowRank
from penstock.runtime.layers.adapted.linear import LoraLinear
from penstock.runtime.layers.adapted.table import LoraTable
from penstock.runtime.ops.lora import RANK_STEP

IDENTITY_ROWS = 512
_SCRATCH = threading.local()


@dataclass(frozen=True, slots=True)
class PreparedAdapter:
    """What a slot is filled with."""

    adapter: Adapter
    """What of it lies in no slot's memory: tables and experts, and changes of tables."""
    rank: int
    numbers: Tensor | PinnedNumbers
    """[numbers]: of every linear it changes A and B, in the model's own numbers."""
    places: Tensor
    """int32 [linears, 4], as `LoraBank` has them."""
    factors: Tensor | None
    """float32 [outputs of all linears], where it is a DoRA."""

    @property
    def digest(self) -> str:
        return self.adapter.digest

    @property
    def path(self) -> str:
        return self.adapter.path

    @property
    def base(self) -> str:
        return self.adapter.base

    @property
    def num_bytes(self) -> int:
        return self.numbers.nbytes + self.adapter.num_bytes


def rounded_rank(rank: int) -> int:
    return -(-rank // RANK_STEP) * RANK_STEP


def pack(
    adapter: Adapter,
    linears: Mapping[str, LoraLinear],
    most_rank: int,
    like: Tensor,
    pinned: PinnedPieces | None = None,
) -> PreparedAdapter:
    """In numbers like one of the model's, in memory a GPU can read by itself; DoRA's scales as factors of plain products."""
    places = torch.zeros((len(linears), 4), dtype=torch.int32)
    changed = {name: parts for name, parts in adapter.changes.items() if name not in TABLES}
    total = sum(_num_numbers(parts, linears[name].sizes) for name, parts in changed.items())
    numbers = torch.empty(total, dtype=like.dtype) if pinned is None else _scratch(total, like.dtype)
    has_factors = any(part is not None and part.scales is not None for parts in changed.values() for part in parts)
    factors = torch.ones(sum(sum(linear.sizes) for linear in linears.values())) if has_factors else None
    at = first = 0
    laying: list[tuple[Sequence[LowRank | None], Sequence[int], Tensor, Tensor]] = []
    for number, (name, linear) in enumerate(linears.items()):
        outputs = sum(linear.sizes)
        if name in changed:
            parts = scaled_parts(linear, changed[name])
            rank = _rank(parts)
            if rank > most_rank:
                raise ModelFileError(f"{name} is changed by rank {rank}; at most {most_rank} (--max-adapter-rank)")
            is_scaled = any(part is not None and part.scales is not None for part in parts)
            end = at + _num_numbers(parts, linear.sizes)
            at_b = end - rank * outputs
            places[number] = torch.tensor([rank, at, at_b, is_scaled])
            laying.append((parts, linear.sizes, numbers[at:at_b], numbers[at_b:end].view(outputs, rank)))
            if factors is not None:
                for part in parts:
                    if part is not None and part.scales is not None:
                        factors[first + part.first : first + part.rows.stop] = part.scales
            at = end
        first += outputs
    with reading_threads() as pool:
        list(pool.map(lambda told: _lay(*told), laying))
        held = numbers if pinned is None else pinned.hold(numbers, pool)
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


def scaled_parts(matrix: LoraLinear | LoraTable, parts: Sequence[LowRank | None]) -> tuple[LowRank | None, ...]:
    """Of one matrix; the squares of its rows are found once."""
    scales = [part for part in parts if part is not None and part.scales is not None]
    if not scales:
        return tuple(parts)
    plain = matrix.linear if isinstance(matrix, LoraLinear) else matrix.table
    if matrix.squares is None:
        matrix.squares = row_squares(plain, scales[0].right.shape[1])
    return tuple(None if part is None else scaled(plain, part, matrix.squares) for part in parts)


def _rank(parts: Sequence[LowRank | None]) -> int:
    return rounded_rank(max(part.rank for part in parts if part is not None))


def _num_numbers(parts: Sequence[LowRank | None], sizes: Sequence[int]) -> int:
    columns = next(part.right.shape[1] for part in parts if part is not None)
    return _rank(parts) * (len(sizes) * columns + sum(sizes))


@torch.inference_mode()
def _lay(parts: Sequence[LowRank | None], sizes: Sequence[int], a: Tensor, b: Tensor) -> None:
    """Zeros where there is no change, and beyond its rank."""
    rows, first = a.view(len(sizes), b.shape[1], -1), 0
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
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


def scaled(module: nn.Module, change: LowRank, squares: Tensor) -> LowRank:
    """A DoRA's magnitudes become factors of the plain product, which count for what is added too.

    `squares` are those of the matrix's rows. |w + ba|^2 = |w|^2 + 2 b (A w) + b (A A^T) b
    """
    if change.scales is None:
        return change
    left, right = change.left.to(squares.device), change.right.to(squares.device)
    rows = slice(change.first, change.rows.stop)
    crossed = torch.cat([part[:, rows] for part in _images(module, right)])
    inner = right @ right.t()
    total = squares[rows] + 2 * (left * crossed.t()).sum(1) + ((left @ inner) * left).sum(1)
    factors = change.scales / total.clamp(min=1e-12).sqrt().cpu()
    return LowRank(change.left * factors[:, None], change.right, change.first, factors)


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
