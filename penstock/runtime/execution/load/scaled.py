"""Matrices of 8-bit numbers under scales, and of 4-bit numbers that name the levels of a table: FP8, W8A8, bitsandbytes."""

import json
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.audit import TensorAudit, check_numbers
from penstock.runtime.formats.checkpoint import RawTensor, quoted
from penstock.runtime.formats.quants import dequantize
from penstock.runtime.models import weights as recipes
from penstock.runtime.ops.quantized.packed import GROUP, Grouped

VALUES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I8": torch.int8}
EXPONENT_BIAS = 127
MAX_STATE_BYTES = 1 << 16


@dataclass(frozen=True)
class ScaledMatrix:
    recipe: recipes.ScaledBytes
    weight: RawTensor
    scale: RawTensor
    audit: TensorAudit

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Checks that scales and numbers are of one matrix."""
        if self.weight.dtype not in VALUES or len(self.weight.shape) != 2:
            raise ModelFileError(
                f"tensor {quoted(self.weight.name)} is {self.weight.dtype} {list(self.weight.shape)}; under scales a matrix of "
                f"{', '.join(VALUES)} is read: the file is damaged"
            )
        _ = self._scales
        return self.weight.shape

    def item(self, index: int) -> "ScaledMatrix":
        raise NotImplementedError("a matrix has two axes")

    def read(self, start: int, stop: int) -> Tensor:
        height, width = self._block
        rows = torch.arange(start, stop) // height
        scales = self._scales[rows].repeat_interleave(width, 1)[:, : self.shape[1]]
        values = self._values(start, stop).float() * scales
        self._check(values)
        return values

    @property
    def is_rows_of_integers(self) -> bool:
        """Each row has one scale, so that the packed layouts hold it as it is."""
        return self.weight.dtype == "I8" and self._block == (1, self.shape[1]) and self.shape[1] % GROUP == 0

    def grouped(self) -> Grouped:
        scales = self._scales.expand(-1, self.shape[1] // GROUP).half().contiguous()
        self._check(scales)
        values = self._values(0, self.shape[0]).view(self.shape[0], -1, GROUP)
        return Grouped(values, scales, None, rounds=self.recipe.rounds)

    def _check(self, numbers: Tensor) -> None:
        check_numbers(self.weight.name, numbers, self.audit)
        self.audit.nonzero.add(self.scale.name)

    def _values(self, start: int, stop: int) -> Tensor:
        rows = torch.from_numpy(np.array(self.weight.rows[start:stop]))
        return rows.view(VALUES[self.weight.dtype])

    @cached_property
    def _block(self) -> tuple[int, int]:
        num_out, num_in = self.weight.shape
        if self.recipe.block is not None:
            return self.recipe.block
        return (1, num_in) if self.scale.num_values == num_out and num_out > 1 else (num_out, num_in)

    @cached_property
    def _scales(self) -> Tensor:
        """[rows of blocks, blocks of a row] in float32."""
        (height, width), (num_out, num_in) = self._block, self.weight.shape
        wanted = (-(-num_out // height), -(-num_in // width))
        if self.scale.num_values != math.prod(wanted):
            raise ModelFileError(
                f"tensor {quoted(self.scale.name)} has {self.scale.num_values} scales for {quoted(self.weight.name)} of "
                f"{list(self.weight.shape)}, which takes {math.prod(wanted)}; the file does not fit its own description"
            )
        if self.scale.dtype == "U8":
            exponents = torch.from_numpy(np.array(self.scale.data)).int() - EXPONENT_BIAS
            scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
        else:
            scales = torch.from_numpy(dequantize(self.scale))
        return scales.reshape(wanted) * self.recipe.factor


@dataclass(frozen=True)
class LeveledMatrix:
    """bitsandbytes' 4-bit matrices. `parts` are by what follows the weight's name."""

    recipe: recipes.Nf4
    parts: dict[str, RawTensor]
    audit: TensorAudit

    @cached_property
    def shape(self) -> tuple[int, ...]:
        shape = self._state.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or not all(type(size) is int and size > 0 for size in shape):
            raise self._damaged("its state names no shape")
        block = self._whole("blocksize")
        if self.parts[""].num_bytes * 2 != math.prod(shape) or self.parts[".absmax"].num_values != -(
            -math.prod(shape) // block
        ):
            raise self._damaged(f"its numbers are not those of {shape} in blocks of {block}")
        if self.parts[".quant_map"].num_values != 16:
            raise self._damaged("its table has not 16 levels")
        return tuple(shape)

    def item(self, index: int) -> "LeveledMatrix":
        raise NotImplementedError("a matrix has two axes")

    def read(self, start: int, stop: int) -> Tensor:
        width = self.shape[1]
        first, last = start * width, stop * width
        packed = torch.from_numpy(np.array(self.parts[""].data[first // 2 : -(-last // 2)]))
        numbers = torch.stack((packed >> 4, packed & 15), dim=-1).flatten()[first % 2 :][: last - first]
        levels = torch.from_numpy(dequantize(self.parts[".quant_map"])).flatten()
        blocks = torch.arange(first, last) // self._whole("blocksize")
        values = (levels[numbers.int()] * self._most[blocks]).view(stop - start, width)
        check_numbers(self.parts[""].name, values, self.audit)
        self.audit.nonzero.update(part.name for part in self.parts.values())
        return values

    @cached_property
    def _most(self) -> Tensor:
        """The largest magnitude of every block."""
        most = self.parts[".absmax"]
        if not self.recipe.is_nested:
            return torch.from_numpy(dequantize(most)).flatten()
        table = torch.from_numpy(dequantize(self.parts[".nested_quant_map"])).flatten()
        outer = torch.from_numpy(dequantize(self.parts[".nested_absmax"])).flatten()
        numbers = torch.from_numpy(np.array(most.data)).int()
        places = torch.arange(len(numbers)) // self._whole("nested_blocksize")
        offset = self._state.get("nested_offset", 0.0)
        if len(table) != 256 or len(outer) <= int(places[-1]) or not isinstance(offset, int | float):
            raise self._damaged("the scales of its scales do not fit")
        return table[numbers] * outer[places] + float(offset)

    @cached_property
    def _state(self) -> dict[str, object]:
        raw = self.parts[f".quant_state.{self.recipe.state}"]
        try:
            state = json.loads(raw.data.tobytes()) if raw.num_bytes <= MAX_STATE_BYTES else None
        except (ValueError, RecursionError):
            state = None
        if not isinstance(state, dict):
            raise self._damaged("its state is not a JSON object")
        return state

    def _whole(self, key: str) -> int:
        value = self._state.get(key)
        if type(value) is not int or value < 1:
            raise self._damaged(f"its state has no {key}")
        return value

    def _damaged(self, fault: str) -> ModelFileError:
        return ModelFileError(f"matrix {quoted(self.recipe.name)}: {fault}; the file does not fit its own description")
