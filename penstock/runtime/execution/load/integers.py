"""Matrices of whole numbers in 32-bit words with scales and zeros by group of inputs: AWQ, GPTQ, compressed-tensors.

A number is scale * (q - zero). `IntegerMatrix` reads it as float32, exactly, and as groups of 32 with a scale and a minimum in
half precision: exact where scale * zero is a half-precision number, as it is for the zero of symmetric quantization, else
rounded to 2^-12 of itself, which is what half-precision arithmetic on the same file does.
"""

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
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, join_rows

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word AutoAWQ keeps each of eight neighbouring outputs."""
SLICE_VALUES = 1 << 22
NUMBERS, ORDER = ("qweight", "weight_packed"), "g_idx"


@dataclass(frozen=True)
class IntegerMatrix:
    """[out, in]. `parts` are the tensors of `recipes.integer_parts`, by last name."""

    recipe: recipes.Integers
    parts: dict[str, RawTensor]
    audit: TensorAudit

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Checks that all parts are of one matrix."""
        scales, words = self._named("scale"), self._words
        num_out, num_in = self._sizes()
        if num_in % GROUP or (self._zeros_tensor is not None and num_out % self._per_word):
            raise self._damaged(f"{num_out} outputs of {num_in} inputs are not whole groups of {GROUP} and whole words")
        size = self.recipe.group_size or num_in
        num_groups = -(-num_in // size)
        by_output = isinstance(self.recipe, recipes.PackQuantized)
        wanted: dict[str, tuple[int, ...]] = {
            scales.name: (num_out, num_groups) if by_output else (num_groups, num_out)
        }
        if (zeros := self._zeros_tensor) is not None:
            narrow = num_out // self._per_word
            wanted[zeros.name] = (narrow, num_groups) if by_output else (num_groups, narrow)
        if ORDER in self.parts:
            wanted[self.parts[ORDER].name] = (num_in,)
        for part in self.parts.values():
            if part.shape != wanted.get(part.name, part.shape):
                raise self._damaged(
                    f"{quoted(part.name)} is {list(part.shape)} beside {quoted(words.name)} of {list(words.shape)}, "
                    f"and would be {list(wanted[part.name])} in groups of {size}"
                )
        if (bias := self.parts.get("bias")) is not None and dequantize(bias).any():
            raise ModelFileError(f"tensor {quoted(bias.name)} is a bias, for which this architecture has no place")
        return num_out, num_in

    def item(self, index: int) -> "IntegerMatrix":
        raise NotImplementedError("a matrix has two axes")

    def read(self, start: int, stop: int) -> Tensor:
        scales, zeros, group = self._scales[start:stop], self._zeros[start:stop], self._group_of_input
        values = (self._integers(start, stop).float() - zeros.float()[:, group]) * scales[:, group]
        self._check(values)
        return values

    def grouped(self) -> Grouped:
        """In groups of 32 of the inputs as they are, or in the order that brings those of a group together."""
        order = self.order
        groups = (self._group_of_input if order is None else self._group_of_input[order])[::GROUP]
        middle = 0 if self._bits == 4 else 128  # 8-bit values are signed
        scales = self._scales[:, groups]
        minimums = scales * (middle - self._zeros[:, groups].float())
        has_minimum = self._bits == 4 or bool(minimums.any())
        step = max(1, SLICE_VALUES // self.shape[1])
        pieces = []
        for start in range(0, self.shape[0], step):
            rows = slice(start, start + step)
            values = self._integers(start, min(start + step, self.shape[0]))
            values = values if order is None else values[:, order]
            by_group = values.view(len(values), -1, GROUP)
            if self._bits == 4:
                by_group = by_group[..., : GROUP // 2] | (by_group[..., GROUP // 2 :] << 4)
            else:
                by_group = (by_group ^ 128).view(torch.int8)
            pieces.append(Grouped(by_group, scales[rows].half(), minimums[rows].half() if has_minimum else None))
        matrix = join_rows(pieces).with_order(order)
        self._check(matrix.scales, matrix.minimums)
        return matrix

    def _check(self, *numbers: Tensor | None) -> None:
        """Only the numbers that all parts make together are judged."""
        for each in numbers:
            if each is not None:
                check_numbers(self._words.name, each, self.audit)
        self.audit.nonzero.update(part.name for part in self.parts.values() if part is not self._words)

    @property
    def _bits(self) -> int:
        return 4 if isinstance(self.recipe, recipes.Awq) else self.recipe.bits

    @property
    def _per_word(self) -> int:
        return 32 // self._bits

    @property
    def _words(self) -> RawTensor:
        return next(self.parts[name] for name in NUMBERS if name in self.parts)

    @property
    def _zeros_tensor(self) -> RawTensor | None:
        return next((part for name, part in self.parts.items() if "zero" in name), None)

    def _named(self, word: str) -> RawTensor:
        return next(part for name, part in self.parts.items() if word in name)

    def _sizes(self) -> tuple[int, int]:
        words = self._words
        if len(words.shape) != 2 or words.dtype != "I32":
            raise self._damaged(f"{quoted(words.name)} is {words.dtype} {list(words.shape)}, not a matrix of I32 words")
        rows, columns = words.shape
        match self.recipe:
            case recipes.Awq():
                return columns * 8, rows
            case recipes.Gptq():
                return columns, rows * self._per_word
            case _:
                return rows, columns * self._per_word

    def _integers(self, start: int, stop: int) -> Tensor:
        """Rows start .. stop as bytes 0 .. 255, [out, in]."""
        words = _words_of(self._words)
        match self.recipe:
            case recipes.Awq():
                first, last = start // 8, -(-stop // 8)
                numbers = _spread(words[:, first:last], 4)[:, :, AWQ_PLACES].flatten(1)
                return numbers[:, start - first * 8 : stop - first * 8].t().contiguous()
            case recipes.Gptq():
                return _spread(words[:, start:stop], self._bits).permute(1, 0, 2).flatten(1)
            case _:
                return _spread(words[start:stop], self._bits).flatten(1)

    @cached_property
    def _scales(self) -> Tensor:
        """[out, groups] in float32."""
        scales = torch.from_numpy(dequantize(self._named("scale")))
        return scales if isinstance(self.recipe, recipes.PackQuantized) else scales.t().contiguous()

    @cached_property
    def _zeros(self) -> Tensor:
        """[out, groups]."""
        zeros = self._zeros_tensor
        if zeros is None:
            return torch.full(self._scales.shape, 1 << (self._bits - 1), dtype=torch.uint8)
        words = _words_of(zeros)
        match self.recipe:
            case recipes.Awq():
                return _spread(words, 4)[:, :, AWQ_PLACES].flatten(1).t().contiguous()
            case recipes.Gptq(zeros_less_one=True):
                # Whole words: a zero of 0 has borrowed from its neighbour when one was taken from all of them.
                ones = np.uint32(0x11111111 if self._bits == 4 else 0x01010101)
                words = (words.view(np.uint32) + ones).view(np.int32)
                return _spread(words, self._bits).flatten(1).t().contiguous()
            case recipes.Gptq():
                return _spread(words, self._bits).flatten(1).t().contiguous()
            case _:
                return _spread(np.ascontiguousarray(words.T), self._bits).permute(1, 2, 0).flatten(0, 1)

    @cached_property
    def _group_of_input(self) -> Tensor:
        num_in, num_groups = self.shape[1], self._scales.shape[1]
        if ORDER not in self.parts:
            return torch.arange(num_in) // (self.recipe.group_size or num_in)
        groups = torch.from_numpy(_words_of(self.parts[ORDER]).astype(np.int64))
        if not bool(((groups >= 0) & (groups < num_groups)).all()):
            raise self._damaged(f"{quoted(self.parts[ORDER].name)} names groups that are not there")
        return groups

    @cached_property
    def order(self) -> Tensor | None:
        """Inputs so arranged that each run of 32 is of one group; None if they are."""
        groups = self._group_of_input
        if bool((groups.view(-1, GROUP) == groups[::GROUP, None]).all()):
            return None
        order = torch.sort(groups, stable=True).indices
        if bool((groups[order].view(-1, GROUP) != groups[order][::GROUP, None]).any()):
            raise self._damaged(f"{quoted(self.parts[ORDER].name)} has groups that are not multiples of {GROUP} inputs")
        return order

    def _damaged(self, fault: str) -> ModelFileError:
        return ModelFileError(f"matrix {quoted(self.recipe.name)}: {fault}; the file does not fit its own description")


def _words_of(raw: RawTensor) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    if raw.dtype != "I32":
        raise ModelFileError(
            f"tensor {quoted(raw.name)} is {raw.dtype}; packed whole numbers are I32: the file is damaged"
        )
    return np.ascontiguousarray(raw.data).view(np.int32).reshape(raw.shape)


def _spread(words: np.ndarray[tuple[int, ...], np.dtype[np.int32]], bits: int) -> Tensor:
    """Words [.., n] as bytes [.., n, 32 / bits], the lowest bits first."""
    packed = torch.from_numpy(np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4).copy())
    return packed if bits == 8 else torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
