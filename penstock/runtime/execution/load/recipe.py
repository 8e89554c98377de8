"""Recipes over an open checkpoint, readable a few rows at a time.

A `Source` knows its shape without reading numbers, and reads any run of rows as float32. So a parameter of any size is made
with little memory beside its own. Numbers that are not finite are refused where they are read, by the tensor's name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.audit import TensorAudit, check_numbers
from penstock.runtime.execution.load.integers import IntegerMatrix
from penstock.runtime.execution.load.scaled import LeveledMatrix, ScaledMatrix
from penstock.runtime.formats.checkpoint import Checkpoint, RawTensor, quoted
from penstock.runtime.formats.quants import dequantize_rows
from penstock.runtime.models import weights as recipes

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float32)


class Source(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...

    def item(self, index: int) -> "Source":
        """One entry of the first axis of three or more."""

    def read(self, start: int, stop: int) -> Tensor:
        """Entries start .. stop of the first axis of one or two, in float32."""


def open_recipe(recipe: recipes.Recipe, checkpoint: Checkpoint, audit: TensorAudit) -> Source:
    def part(inner: recipes.Recipe) -> Source:
        return open_recipe(inner, checkpoint, audit)

    def raw(name: str) -> RawTensor:
        return audit.reached.setdefault(name, checkpoint.tensor(name))

    match recipe:
        case recipes.Tensor():
            return Leaf(raw(recipe.name), audit)
        case recipes.Concat():
            return Joined(tuple(part(inner) for inner in recipe.parts), recipe.axis)
        case recipes.Stack():
            return StackedSource(tuple(part(inner) for inner in recipe.parts))
        case recipes.Take():
            return Taken(part(recipe.part), slice(recipe.start, recipe.stop, recipe.step), recipe.axis)
        case recipes.Swap():
            return Swapped(part(recipe.part))
        case recipes.HalvesPaired():
            return Paired(part(recipe.part), recipe.num_heads)
        case recipes.Plus():
            return Changed(part(recipe.part), partial(torch.add, other=recipe.constant))
        case recipes.Times():
            return Changed(part(recipe.part), partial(torch.mul, other=recipe.factor))
        case recipes.Mxfp4():
            return Mxfp4Source(_in_blocks(raw(recipe.blocks), raw(recipe.scales)), raw(recipe.scales), audit)
        case recipes.Awq() | recipes.Gptq() | recipes.PackQuantized():
            names = recipes.integer_parts(recipe)
            return IntegerMatrix(recipe, {name: raw(f"{recipe.name}.{name}") for name in names}, audit)
        case recipes.ScaledBytes():
            return ScaledMatrix(recipe, raw(f"{recipe.name}.weight"), raw(f"{recipe.name}.{recipe.scales}"), audit)
        case recipes.Nf4():
            parts = {part: raw(f"{recipe.name}.weight{part}") for part in recipes.nf4_parts(recipe)}
            return LeveledMatrix(recipe, parts, audit)


@dataclass(frozen=True, slots=True)
class Leaf:
    raw: RawTensor
    audit: TensorAudit

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    def item(self, index: int) -> "Leaf":
        return Leaf(_raw_item(self.raw, index), self.audit)

    def read(self, start: int, stop: int) -> Tensor:
        if len(self.shape) == 1:
            values = torch.from_numpy(dequantize_rows(self.raw, slice(0, 1)))[0, start:stop]
        else:
            values = torch.from_numpy(dequantize_rows(self.raw, slice(start, stop)))
        check_numbers(self.raw.name, values, self.audit)
        return values


@dataclass(frozen=True, slots=True)
class Joined:
    parts: tuple[Source, ...]
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        shapes = [part.shape for part in self.parts]
        first, axis = shapes[0], self.axis
        if any(shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :] for shape in shapes):
            listed = ", ".join(str(list(shape)) for shape in shapes)
            raise ModelFileError(f"tensors of shapes {listed} cannot be joined along axis {axis}; the file is damaged")
        return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])

    def item(self, index: int) -> Source:
        if self.axis > 0:
            return Joined(tuple(part.item(index) for part in self.parts), self.axis - 1)
        for part in self.parts:
            if index < part.shape[0]:
                return part.item(index)
            index -= part.shape[0]
        raise IndexError(index)

    def read(self, start: int, stop: int) -> Tensor:
        if self.axis > 0:
            return torch.cat([part.read(start, stop) for part in self.parts], dim=self.axis)
        pieces, begin = [], 0
        for part in self.parts:
            low, high = max(start - begin, 0), min(stop - begin, part.shape[0])
            if low < high:
                pieces.append(part.read(low, high))
            begin += part.shape[0]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@dataclass(frozen=True, slots=True)
class StackedSource:
    parts: tuple[Source, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        shapes = {part.shape for part in self.parts}
        if len(shapes) != 1:
            listed = ", ".join(str(list(shape)) for shape in sorted(shapes))
            raise ModelFileError(f"tensors of shapes {listed} cannot be stacked; the file is damaged")
        return (len(self.parts), *shapes.pop())

    def item(self, index: int) -> Source:
        return self.parts[index]

    def read(self, start: int, stop: int) -> Tensor:
        return torch.stack([part.read(0, part.shape[0]) for part in self.parts[start:stop]])


@dataclass(frozen=True, slots=True)
class Taken:
    part: Source
    rows: slice
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.part.shape
        return (*shape[: self.axis], len(range(*self.rows.indices(shape[self.axis]))), *shape[self.axis + 1 :])

    def item(self, index: int) -> Source:
        if self.axis > 0:
            return Taken(self.part.item(index), self.rows, self.axis - 1)
        return self.part.item(range(*self.rows.indices(self.part.shape[0]))[index])

    def read(self, start: int, stop: int) -> Tensor:
        if self.axis > 0:
            return self.part.read(start, stop)[:, self.rows]
        wanted = range(*self.rows.indices(self.part.shape[0]))[start:stop]
        return self.part.read(wanted[0], wanted[-1] + 1)[:: wanted.step]


@dataclass(slots=True)
class Swapped:
    part: Source
    whole: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, rows, columns = self.part.shape
        return (*outer, columns, rows)

    def item(self, index: int) -> Source:
        return Swapped(self.part.item(index))

    def read(self, start: int, stop: int) -> Tensor:
        if self.whole is None:
            self.whole = self.part.read(0, self.part.shape[0])
        return self.whole[:, start:stop].t()


@dataclass(frozen=True, slots=True)
class Paired:
    """Reads whole heads, since a row's new neighbour is half a head away."""

    part: Source
    num_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        if self.part.shape[0] % (2 * self.num_heads):
            raise ModelFileError(
                f"{self.part.shape[0]} rows do not make {self.num_heads} heads of pairs; the file is damaged"
            )
        return self.part.shape

    def item(self, index: int) -> Source:
        raise NotImplementedError("heads lie on the first of two axes")

    def read(self, start: int, stop: int) -> Tensor:
        size = self.shape[0] // self.num_heads
        first = start // size * size
        rows = self.part.read(first, math.ceil(stop / size) * size)
        heads = rows.view(-1, size // 2, 2, *rows.shape[1:]).transpose(1, 2)
        return heads.reshape(rows.shape)[start - first : stop - first]


@dataclass(frozen=True, slots=True)
class Changed:
    """Every number changed alike."""

    part: Source
    change: Callable[[Tensor], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape

    def item(self, index: int) -> Source:
        return Changed(self.part.item(index), self.change)

    def read(self, start: int, stop: int) -> Tensor:
        return self.change(self.part.read(start, stop))


@dataclass(frozen=True, slots=True)
class Mxfp4Source:
    blocks: RawTensor
    scales: RawTensor
    audit: TensorAudit

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, num_blocks, num_bytes = self.blocks.shape
        if num_bytes != 16 or self.scales.shape != (*outer, num_blocks):
            raise ModelFileError(
                f"{quoted(self.blocks.name)} is {list(self.blocks.shape)} and its scales {list(self.scales.shape)}; "
                "4-bit blocks are [..., blocks, 16] with scales [..., blocks]: the file is damaged"
            )
        return (*outer, num_blocks * 32)

    def item(self, index: int) -> "Mxfp4Source":
        return Mxfp4Source(_raw_item(self.blocks, index), _raw_item(self.scales, index), self.audit)

    def read(self, start: int, stop: int) -> Tensor:
        packed = _bytes(self.blocks)[start:stop]
        exponents = _bytes(self.scales)[start:stop].int() - 127
        # The low half of a byte comes first.
        values = FP4[torch.stack((packed & 0x0F, packed >> 4), dim=-1).int()]
        numbers = torch.ldexp(values.flatten(-2), exponents[..., None]).flatten(-2)
        check_numbers(self.blocks.name, numbers, self.audit)
        self.audit.nonzero.add(self.scales.name)
        return numbers


def _raw_item(raw: RawTensor, index: int) -> RawTensor:
    size = raw.num_bytes // raw.shape[0]
    return replace(raw, shape=raw.shape[1:], data=raw.data[index * size : (index + 1) * size])


def _in_blocks(raw: RawTensor, scales: RawTensor) -> RawTensor:
    """Bytes [..., blocks, 16], also where they lie as [..., bytes]."""
    if len(raw.shape) != len(scales.shape) or raw.shape[-1] != 16 * scales.shape[-1]:
        return raw
    return replace(raw, shape=(*raw.shape[:-1], scales.shape[-1], 16))


def _bytes(raw: RawTensor) -> Tensor:
    if raw.dtype != "U8":
        raise ModelFileError(
            f"tensor {quoted(raw.name)} is {raw.dtype}; packed 4-bit floats are U8: the file is damaged"
        )
    return torch.from_numpy(np.array(raw.data).reshape(raw.shape))
