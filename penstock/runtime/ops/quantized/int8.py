"""Matrices of 8-bit whole numbers, one scale for each row, and products with them (W8A8).

Activations are rounded to 8-bit whole numbers too, each row by its own scale, so that both sides go through the 8-bit matrix
units; sums of products are exact. `PackedInt8` holds a matrix in the order CPU kernels read it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.op import operation

MOST = 127.0
LEAST = 1e-12
"""A row smaller than this counts as this large, so that its scale is never zero."""


class Int8(NamedTuple):
    """Row r is scales[r] * values[r]: values [rows, columns] in int8, scales [rows] in float32."""

    values: Tensor
    scales: Tensor


@operation
def round_int8(x: Tensor) -> Int8:
    """Numbers [rows, columns] rounded by each row's largest; the scale of a row that is not finite is not, either."""
    wide = x.float()
    most = wide.abs().amax(-1).clamp(min=LEAST) + (wide * 0.0).sum(-1)
    inverse = most.new_tensor(MOST) / most
    return Int8((wide * inverse[:, None]).nan_to_num().round().to(torch.int8), most / MOST)


@operation
def multiply_int8(values: Tensor, scales: Tensor, weight: Int8, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rounded rows times the matrix, the result in `dtype`."""
    product = (values.double() @ weight.values.double().t()).float() * weight.scales * scales[:, None]
    return (product if bias is None else product + bias).to(dtype)


TILE, QUAD, CHUNK = 16, 4, 64
"""Rows that stand together, inputs of a row that do, and what columns are filled up to a multiple of."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedInt8:
    """For each run of 16 rows the values [columns / 4][16 rows][4], filled up with zeros; after all of them the scales."""

    data: Tensor
    num_rows: int
    num_columns: int

    bits = 8
    has_minimum = False

    @property
    def num_value_bytes(self) -> int:
        return -(-self.num_rows // TILE) * TILE * -(-self.num_columns // CHUNK) * CHUNK

    def unpack(self) -> Int8:
        tiles = self.data[: self.num_value_bytes].view(torch.int8).view(-(-self.num_rows // TILE), -1, TILE, QUAD)
        values = tiles.transpose(1, 2).flatten(2).flatten(0, 1)[: self.num_rows, : self.num_columns].contiguous()
        return Int8(values, self.data[self.num_value_bytes :].view(torch.float32)[: self.num_rows])


def pack_int8(matrix: Int8) -> PackedInt8:
    num_rows, num_columns = matrix.values.shape
    padding = -num_rows % TILE
    values = functional.pad(matrix.values, (0, -num_columns % CHUNK, 0, padding)).view(torch.int32)
    words = values.view(-1, TILE, values.shape[1]).transpose(1, 2).contiguous()
    scales = functional.pad(matrix.scales.float(), (0, padding))
    return PackedInt8(torch.cat((words.flatten(), scales.view(torch.int32))).view(torch.uint8), num_rows, num_columns)
