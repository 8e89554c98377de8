"""Tensors of a small file: copied out of its mapping in few large operations, or only located in it."""

import ctypes
import math
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor

from penstock.runtime.formats.checkpoint import RawTensor

PIECE_BYTES = 4 << 20
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Numbers as torch knows them."""


class CopiedTensors:
    """All of a file's tensors in few operations: the loop of steps needs the interpreter meanwhile.

    Where they are of one plain kind and side by side they are copied and looked through in a few large pieces.
    """

    def __init__(self, tensors: Sequence[RawTensor], pool: Executor) -> None:
        begins = [raw.data.ctypes.data for raw in tensors]
        first = min(begins)
        kinds = {raw.dtype for raw in tensors}
        size = sum(raw.num_bytes for raw in tensors)
        self.is_whole = len(kinds) == 1 and kinds <= PLAIN.keys() and size % 4 == 0
        self.is_whole &= max(begin + raw.num_bytes for begin, raw in zip(begins, tensors)) - first == size
        if not self.is_whole:
            return
        self._first, self._bytes = first, torch.empty(size, dtype=torch.uint8)
        self._kind = PLAIN[tensors[0].dtype]
        source = (ctypes.c_uint8 * size).from_address(first)  # the tensors hold the mapping meanwhile
        self._source = np.ctypeslib.as_array(source)
        self.are_finite = all(list(pool.map(self._copy, range(0, size, PIECE_BYTES))))
        del self._source

    def _copy(self, begin: int) -> bool:
        """One piece; whether its numbers are finite, as far as their sum tells."""
        piece = self._bytes[begin : begin + PIECE_BYTES]
        np.copyto(piece.numpy(), self._source[begin : begin + PIECE_BYTES])
        return math.isfinite(piece.view(self._kind).sum().item())

    def get(self, raw: RawTensor) -> Tensor:
        begin = raw.data.ctypes.data - self._first
        return self._bytes[begin : begin + raw.num_bytes].view(self._kind).view(raw.shape)

    def times(self, tensor: Tensor, scale: float) -> Tensor:
        return tensor if scale == 1 else tensor.float() * scale


class ShapedTensors:
    """Tensors without memory, of any kind: their shapes are all there is."""

    is_whole = are_finite = True

    def get(self, raw: RawTensor) -> Tensor:
        return torch.empty(raw.shape, device="meta")

    def times(self, tensor: Tensor, scale: float) -> Tensor:
        return tensor


class LocatedTensors:
    """Tensors without memory. Offsets and strides of what is cut out of them say where its numbers lie in the file.

    The file's tensors are of one plain kind and fill it from byte `first` on.
    """

    is_whole = are_finite = True

    def __init__(self, tensors: Sequence[RawTensor], first: int) -> None:
        self.kind = PLAIN[tensors[0].dtype]
        self._origin = min(raw.data.ctypes.data for raw in tensors) - first
        num_bytes = first + sum(raw.num_bytes for raw in tensors)
        self._file = torch.empty(num_bytes // self.kind.itemsize, dtype=self.kind, device="meta")
        self._begins = sorted(self._offset(raw) for raw in tensors)
        self._scales: dict[int, float] = {}
        """By where the tensor begins."""

    def _offset(self, raw: RawTensor) -> int:
        return (raw.data.ctypes.data - self._origin) // self.kind.itemsize

    def get(self, raw: RawTensor) -> Tensor:
        begin = self._offset(raw)
        return self._file[begin : begin + raw.num_values].view(raw.shape)

    def times(self, tensor: Tensor, scale: float) -> Tensor:
        """The tensor as it is; its scale is noted."""
        self._scales[int(tensor.storage_offset())] = scale
        return tensor

    def scale_of(self, part: Tensor) -> float:
        """Of the tensor that a part was cut out of."""
        return self._scales.get(self._begins[bisect_right(self._begins, int(part.storage_offset())) - 1], 1.0)

    def has(self, part: Tensor) -> bool:
        """Whether a part was cut out of the file, and not made anew."""
        return bool(part.untyped_storage()._cdata == self._file.untyped_storage()._cdata)
