"""Packed weight matrices: the few layouts every quantized format is brought to when it is loaded.

A matrix [rows, columns] is cut into groups of 32 inputs of a row; a number is scale * q + minimum, with a scale and perhaps a
minimum of its own for each group, both in half precision. `Grouped` holds that row by row; `PackedGroups` holds the same
numbers in the order kernels read them:

    for each run of 16 rows, for each group:  values | 16 scales | 16 minimums
    values, as bytes  [8 lines][16 rows][4 inputs]   of 4 bits: [4 lines], low half line j, high half line j + 4

Matrices that round what they are multiplied with are `PackedInt8`. That is for CPUs. `Words` hold them row by row for GPUs, and
products with them are operations. Knows no file format.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import ModelFileError
from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.op import operation
from penstock.runtime.ops.quantized.int8 import Int8, PackedInt8, multiply_int8, pack_int8, round_int8

GROUP = 32
MAX_GROUP = 128
LANES = 32
TILE = 16
SCALES_BYTES = TILE * 2
MOST_INTEGER = 127.0 * 8
"""Kernels hold the whole numbers of a row as 8 * high + low, a byte each."""


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Rows in groups. 4-bit values are bytes [rows, groups, 16], input k low and input k + 16 high; others [.., 32], signed."""

    values: Tensor
    scales: Tensor
    minimums: Tensor | None
    order: Tensor | None = None
    """Which input stands at each place; None if they stand as they come."""
    rounds: bool = False
    """Made to be multiplied with rows rounded to 8 bits; every row has one scale then."""

    @property
    def bits(self) -> int:
        return 4 if self.values.dtype == torch.uint8 else 8

    @property
    def num_rows(self) -> int:
        return self.values.shape[0]

    @property
    def num_columns(self) -> int:
        return self.values.shape[1] * GROUP

    def take(self, rows: Tensor) -> "Grouped":
        """Rows by number."""
        return self._each(lambda numbers: numbers.index_select(0, rows))

    def take_columns(self, columns: range) -> "Grouped":
        """Rows between whole groups."""
        if columns.start % GROUP or columns.stop % GROUP:
            raise ModelFileError(
                f"columns {columns.start:,} to {columns.stop:,} of a packed matrix do not lie between groups of {GROUP}; "
                "choose other ranks, or load the model with --dtype bfloat16"
            )
        held = slice(columns.start // GROUP, columns.stop // GROUP)
        return replace(self._each(lambda numbers: numbers[:, held].contiguous()), order=None)

    def to(self, device: torch.device) -> "Grouped":
        """Its numbers on a device; `order` stays."""
        return self._each(lambda numbers: numbers.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Grouped":
        minimums = None if self.minimums is None else change(self.minimums)
        return replace(self, values=change(self.values), scales=change(self.scales), minimums=minimums)

    def with_order(self, order: Tensor | None) -> "Grouped":
        return replace(self, order=order)

    def widened(self) -> "Grouped":
        """The same numbers with 8-bit values."""
        return self if self.bits == 8 else replace(self, values=_integers(self.values))

    def dequantize(self) -> Tensor:
        """[rows, columns] in float32."""
        values = self.widened().values.float() * self.scales.float().unsqueeze(-1)
        if self.minimums is not None:
            values += self.minimums.float().unsqueeze(-1)
        return values.flatten(1) if self.order is None else values.flatten(1)[:, torch.argsort(self.order)]


@dataclass(frozen=True, slots=True, eq=False)
class PackedGroups:
    """4-bit values 0 .. 15, with minimums, or 8-bit values -128 .. 127, with minimums where the format has them."""

    data: Tensor
    num_rows: int
    num_columns: int
    bits: int
    has_minimum: bool

    @property
    def block_bytes(self) -> int:
        return TILE * GROUP * self.bits // 8 + SCALES_BYTES * (1 + self.has_minimum)


Packed: TypeAlias = PackedGroups | PackedInt8


def join_rows(parts: Sequence[Grouped]) -> Grouped:
    """One matrix of all rows; parts of different layouts are brought to the wider one, of one order they must be."""
    if any(part.bits == 8 for part in parts):
        parts = [part.widened() for part in parts]
    minimums = None
    if any(part.minimums is not None for part in parts):
        minimums = torch.cat([torch.zeros_like(p.scales) if p.minimums is None else p.minimums for p in parts])
    order = parts[0].order
    if any(not _same_order(part.order, order) for part in parts):
        raise ModelFileError(
            "matrices that are joined take their inputs in different orders (GPTQ with desc_act), which packed rows cannot; "
            "load the model with --dtype bfloat16"
        )
    values, scales = torch.cat([p.values for p in parts]), torch.cat([p.scales for p in parts])
    return Grouped(values, scales, minimums, order, all(part.rounds for part in parts))


def _same_order(left: Tensor | None, right: Tensor | None) -> bool:
    return left is right or (left is not None and right is not None and torch.equal(left, right))


def quantize(weight: Tensor) -> Grouped:
    """8-bit values nearest to float numbers [rows, columns]; the error is at most 1/254 of a group's largest magnitude."""
    groups = weight.float().view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1) / 127.0).half()
    inverse = torch.where(scales > 0, 1.0 / scales.float(), 0.0)
    values = (groups * inverse.unsqueeze(-1)).round().clamp(-127, 127)
    return Grouped(values.to(torch.int8), scales, None)


def pack(matrix: Grouped) -> Packed:
    """Rows are filled up with zeros to whole tiles."""
    if matrix.rounds:
        return pack_int8(Int8(matrix.values.flatten(1), matrix.scales[:, 0]))
    num_tiles = -(-matrix.num_rows // TILE)
    has_minimum = matrix.bits == 4 or matrix.minimums is not None
    num_groups, lines = matrix.values.shape[1], matrix.values.shape[2] // 4
    block_bytes = lines * TILE * 4 + SCALES_BYTES * (1 + has_minimum)
    data = torch.empty((num_tiles, num_groups, block_bytes), dtype=torch.uint8)
    # Four bytes at a time: they stay together.
    values = _padded(matrix.values, num_tiles).view(torch.int32).view(num_tiles, TILE, num_groups, lines)
    split = lines * TILE * 4
    words = data.view(torch.int32)[:, :, : split // 4]
    words.copy_(values.permute(0, 2, 3, 1).reshape(num_tiles, num_groups, lines * TILE))
    data[:, :, split : split + SCALES_BYTES] = _tiled(matrix.scales, num_tiles)
    if matrix.minimums is not None:
        data[:, :, split + SCALES_BYTES :] = _tiled(matrix.minimums, num_tiles)
    elif has_minimum:
        data[:, :, split + SCALES_BYTES :] = 0
    return PackedGroups(data.flatten(), matrix.num_rows, matrix.num_columns, matrix.bits, has_minimum)


def unpack(packed: Packed) -> Grouped:
    num_groups = packed.num_columns // GROUP
    if isinstance(packed, PackedInt8):
        values, scales = packed.unpack()
        return Grouped(
            values.view(-1, num_groups, GROUP), scales.half()[:, None].expand(-1, num_groups), None, rounds=True
        )
    data = packed.data.view(-1, num_groups, packed.block_bytes)
    split = packed.block_bytes - SCALES_BYTES * (1 + packed.has_minimum)
    lines = split // (TILE * 4)
    values = data[:, :, :split].reshape(-1, num_groups, lines, TILE, 4).permute(0, 3, 1, 2, 4)
    rows = values.reshape(-1, num_groups, lines * 4)[: packed.num_rows].contiguous()

    def numbers(start: int) -> Tensor:
        tiled = data[:, :, start : start + SCALES_BYTES].contiguous().view(torch.float16)
        return tiled.transpose(1, 2).reshape(-1, num_groups)[: packed.num_rows]

    minimums = numbers(split + SCALES_BYTES) if packed.has_minimum else None
    return Grouped(rows if packed.bits == 4 else rows.view(torch.int8), numbers(split), minimums)


def multiply(x: Tensor, packed: Packed) -> Tensor:
    """The definition of a product with a packed matrix: x [rows, columns] in float32 -> [rows, matrix rows].

    Each group of a row of x is rounded to whole numbers up to 1016 (11 bits) of its own scale; products of whole numbers are
    exact. Of a matrix that rounds, all of a row is rounded to 8 bits of one scale.
    """
    if isinstance(packed, PackedInt8):
        return multiply_int8.definition(*round_int8.definition(x), packed.unpack(), None, torch.float32)
    matrix = unpack(packed).widened()
    groups = x.float().view(len(x), -1, GROUP)
    most = groups.abs().amax(-1)
    inverse = torch.where(most > 0, torch.full_like(most, MOST_INTEGER) / most, 0.0)
    rounded = (groups * inverse.unsqueeze(-1)).round().double()
    scales = (most / MOST_INTEGER).double()
    dots = torch.einsum("mgk,ngk->mng", rounded, matrix.values.double())
    result = torch.einsum("mng,mg,ng->mn", dots, scales, matrix.scales.double())
    if matrix.minimums is not None:
        result += torch.einsum("mg,ng->mn", rounded.sum(-1) * scales, matrix.minimums.double())
    return result.float()


class PackedWords(NamedTuple):
    """Rows of 32-bit words, LANES of them a block. Value j of a block's word i is the block's input j * LANES + i: the same
    value of all words of a block are neighbours, of one group. What is left of a row is a block of fewer lanes, `tail` of
    them, a power of two, filled up.

    values    int32 [rows, words]; 8 values of 4 bits, 0 .. 15, or 4 of 8 bits, signed; the first lowest
    scales    float16 [groups, rows], and minimums where there are any; zeros for what is filled up
    group     inputs that share a scale: 32, 64 or 128
    """

    values: Tensor
    scales: Tensor
    minimums: Tensor | None
    group: int
    bits: int
    num_columns: int

    @property
    def num_rows(self) -> int:
        return self.values.shape[0]

    @property
    def values_per_word(self) -> int:
        return 32 // self.bits

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.values, self.scales, self.minimums) if part is not None)

    def rows(self, start: int, stop: int) -> "PackedWords":
        minimums = None if self.minimums is None else self.minimums[:, start:stop]
        return self._replace(values=self.values[start:stop], scales=self.scales[:, start:stop], minimums=minimums)

    @property
    def tail(self) -> int:
        """Lanes of the last block, if it has fewer than others; else none."""
        return tail_lanes(self.num_columns, self.values_per_word)

    def dequantize(self) -> Tensor:
        """[rows, columns] in float32."""
        split = self.values.shape[1] - self.tail
        numbers = torch.cat((self._spread(0, split, LANES), self._spread(split, split + self.tail, self.tail)), dim=1)
        numbers *= self._by_column(self.scales, numbers.shape[1])
        if self.minimums is not None:
            numbers += self._by_column(self.minimums, numbers.shape[1])
        return numbers[:, : self.num_columns]

    def _spread(self, start: int, stop: int, lanes: int) -> Tensor:
        """Values of some words, whose blocks have so many lanes, in the order of inputs."""
        if start == stop:
            return torch.empty((self.num_rows, 0), device=self.values.device)
        packed = self.values[:, start:stop].contiguous().view(torch.uint8).view(self.num_rows, -1, lanes, 4)
        if self.bits == 4:
            packed = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        return packed.view(torch.int8).transpose(2, 3).flatten(1).float()

    def _by_column(self, of_groups: Tensor, num_columns: int) -> Tensor:
        return of_groups.t().float().repeat_interleave(self.group, 1)[:, :num_columns]


def arrange(matrix: Grouped) -> PackedWords:
    """In the order GPUs read; groups that share scale and minimum are made one. The order of inputs is the caller's to keep."""
    scales, minimums, group = matrix.scales, matrix.minimums, GROUP
    while group < MAX_GROUP and _are_pairs(scales) and (minimums is None or _are_pairs(minimums)):
        scales, group = scales[:, ::2], 2 * group
        minimums = None if minimums is None else minimums[:, ::2]
    per_word = 32 // matrix.bits
    tail = tail_lanes(matrix.num_columns, per_word)
    split = matrix.num_columns // (LANES * per_word) * LANES * per_word
    inputs = (_integers(matrix.values) if matrix.bits == 4 else matrix.values).view(torch.uint8).flatten(1)
    rest = functional.pad(inputs[:, split:], (0, split + tail * per_word - matrix.num_columns))
    words = torch.cat((_gather(inputs[:, :split], LANES, matrix.bits), _gather(rest, tail, matrix.bits)), dim=1)
    num_groups = -(-(split + tail * per_word) // group)
    return PackedWords(
        words,
        _by_group(scales, num_groups),
        None if minimums is None else _by_group(minimums, num_groups),
        group,
        matrix.bits,
        matrix.num_columns,
    )


def tail_lanes(num_columns: int, values_per_word: int) -> int:
    """Lanes that hold what whole blocks leave of a row; as many as a whole block has if that takes no more."""
    left = num_columns % (LANES * values_per_word)
    return 1 << (-(-left // values_per_word) - 1).bit_length() if left else 0


def _gather(inputs: Tensor, lanes: int, bits: int) -> Tensor:
    """Blocks of bytes [rows, blocks * values a word * lanes] as words [rows, blocks * lanes]."""
    if not inputs.shape[1]:
        return torch.empty((len(inputs), 0), dtype=torch.int32, device=inputs.device)
    planes = inputs.reshape(len(inputs), -1, 32 // bits, lanes)
    if bits == 4:
        planes = planes[:, :, ::2] | (planes[:, :, 1::2] << 4)
    return planes.transpose(2, 3).contiguous().view(torch.int32).flatten(1)


def _by_group(numbers: Tensor, num_groups: int) -> Tensor:
    return functional.pad(numbers, (0, num_groups - numbers.shape[1])).t().contiguous()


def _are_pairs(numbers: Tensor) -> bool:
    return numbers.shape[1] % 2 == 0 and torch.equal(numbers[:, ::2], numbers[:, 1::2])


@operation
def linear_packed(x: Tensor, weight: PackedWords, bias: Tensor | None) -> Tensor:
    """x [rows, columns] times the matrix."""
    product = x.float() @ weight.dequantize().t()
    return (product if bias is None else product + bias).to(x.dtype)


@operation
def gated_linear_packed(x: Tensor, weight: PackedWords, bias: Tensor | None, activation: Activation) -> Tensor:
    """The first half of the matrix's rows makes gates, the second what they let through."""
    return gate(linear_packed(x, weight, bias), activation)


@operation
def scores_packed(x: Tensor, weight: PackedWords) -> Tensor:
    """The output matrix: numbers over the vocabulary in float32."""
    return x.float() @ weight.dequantize().t()


@operation
def embed_packed(ids: Tensor, weight: PackedWords, scale: float, dtype: torch.dtype) -> Tensor:
    """Rows looked up by number."""
    minimums = None if weight.minimums is None else weight.minimums[:, ids]
    rows = weight._replace(values=weight.values[ids], scales=weight.scales[:, ids], minimums=minimums).dequantize()
    return (rows if scale == 1.0 else rows * scale).to(dtype)


def _integers(halves: Tensor) -> Tensor:
    return torch.cat((halves & 15, halves >> 4), dim=-1).view(torch.int8)


def _padded(rows: Tensor, num_tiles: int) -> Tensor:
    missing = num_tiles * TILE - len(rows)
    return torch.cat((rows, rows.new_zeros((missing, *rows.shape[1:])))) if missing else rows


def _tiled(numbers: Tensor, num_tiles: int) -> Tensor:
    """Half-precision numbers [rows, groups] as bytes [tiles, groups, 2 * TILE]."""
    tiles = _padded(numbers, num_tiles).view(num_tiles, TILE, -1)
    return tiles.transpose(1, 2).contiguous().view(torch.uint8)
