"""Tensors of a small file, copied out of its mapping in few large operations."""

import ctypes
import math
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
