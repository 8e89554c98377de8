"""Number formats a matrix can be written in, beside whole numbers in groups: floats, GGUF's blocks, 8-bit floats, microscaling.

An encoding plans its tensors before there are numbers, rounds rows, and writes what it rounded: codes, whose rows can be taken
without being decoded, and which are restored to what a reader will compute with, [rows, columns] in float32.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor

from penstock.runtime.formats.quants import BLOCKS, unpack
from penstock.runtime.formats.tensor_file import PlannedTensor
from penstock.tools.quantize import ggml
from penstock.tools.quantize.integers import IntegerCodes, IntegerEncoding, raw

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BlockCodes:
    dtype: str
    packed: Array
    device: torch.device

    def restored(self) -> Tensor:
        return torch.from_numpy(unpack(self.dtype, self.packed)).to(self.device)

    def take(self, rows: Tensor) -> "BlockCodes":
        return replace(self, packed=self.packed[rows.cpu().numpy()])


@dataclass(frozen=True, slots=True)
class BlockEncoding:
    """One of GGUF's types, or plain floats: one tensor, whose rows are blocks."""

    dtype: str

    def fits(self, num_columns: int) -> bool:
        return ggml.fits(self.dtype, num_columns)

    def tensors(self, name: str, shape: tuple[int, ...]) -> list[PlannedTensor]:
        return [PlannedTensor(name, self.dtype, shape)]

    def round(self, weight: Tensor, importance: Tensor | None = None) -> BlockCodes:
        weights = None if importance is None else importance.float().cpu().numpy()
        return BlockCodes(self.dtype, ggml.encode(self.dtype, weight.float().cpu().numpy(), weights), weight.device)

    def write(self, name: str, codes: BlockCodes) -> dict[str, Array]:
        return {name: codes.packed}

    def bits_per_weight(self, num_columns: int) -> float:
        block = BLOCKS[self.dtype]
        return 8 * block.num_bytes / block.num_values


@dataclass(frozen=True, slots=True)
class ScaledCodes:
    """8-bit values, a scale for each rectangle of `block` [rows, columns] of them."""

    values: Tensor
    scales: Tensor
    block: tuple[int, int]

    def restored(self) -> Tensor:
        return self.values.float() * spread(self.scales.float(), self.block, self.values.shape)

    def take(self, rows: Tensor) -> "ScaledCodes":
        """Of several rows under one scale only whole ones can be picked: tensors are rounded one by one there."""
        rows = rows.to(self.values.device)
        scales = self.scales[rows // self.block[0]] if self.block[0] == 1 else self.scales
        return replace(self, values=self.values[rows], scales=scales)


def spread(scales: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: shape[0], : shape[1]]


FP8_MOST = 448.0


@dataclass(frozen=True, slots=True)
class Float8Encoding:
    """E4M3 values. `block` None gives every row a scale, else every square of so many rows and columns (as DeepSeek's)."""

    block: int | None
    scale_dtype: torch.dtype = torch.float32

    def fits(self, num_columns: int) -> bool:
        return True

    def tensors(self, name: str, shape: tuple[int, ...]) -> list[PlannedTensor]:
        dtype = "BF16" if self.scale_dtype == torch.bfloat16 else "F32"
        scales = (shape[0], 1) if self.block is None else tuple(-(-size // self.block) for size in shape[:2])
        return [PlannedTensor(name, "F8_E4M3", shape), PlannedTensor(self._scale_name(name), dtype, scales)]

    def _scale_name(self, name: str) -> str:
        return f"{name.removesuffix('.weight')}.weight_scale{'' if self.block is None else '_inv'}"

    def round(self, weight: Tensor, importance: Tensor | None = None) -> ScaledCodes:
        height, width = (1, weight.shape[1]) if self.block is None else (self.block, self.block)
        rows, columns = -weight.shape[0] % height, -weight.shape[1] % width
        padded = torch.nn.functional.pad(weight, (0, columns, 0, rows))
        tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
        scales = (tiles.abs().amax((1, 3)) / FP8_MOST).to(self.scale_dtype)
        scales = torch.where(scales > 0, scales, torch.ones_like(scales))
        values = weight / spread(scales.float(), (height, width), weight.shape)
        values = values.clamp_(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
        return ScaledCodes(values, scales, (height, width))

    def write(self, name: str, codes: ScaledCodes) -> dict[str, Array]:
        return {name: raw(codes.values), self._scale_name(name): raw(codes.scales)}

    def bits_per_weight(self, num_columns: int) -> float:
        area = num_columns if self.block is None else self.block**2
        return 8 + 8 * self.scale_dtype.itemsize / area


FP4_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@dataclass(frozen=True, slots=True)
class MicroCodes:
    """Values in units of a power of two for every 32 columns; `exponents` are biased by 127."""

    values: Tensor
    exponents: Tensor

    def restored(self) -> Tensor:
        exponents = self.exponents.int() - 127
        scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
        return (self.values.view(*scales.shape, 32) * scales.unsqueeze(-1)).flatten(1)

    def take(self, rows: Tensor) -> "MicroCodes":
        rows = rows.to(self.values.device)
        return MicroCodes(self.values[rows], self.exponents[rows])


@dataclass(frozen=True, slots=True)
class MicroEncoding:
    """MXFP4 (E2M1) and MXFP8 (E4M3): blocks of 32 under a power of two, the better of the two that come near."""

    kind: Literal["mxfp4", "mxfp8"]

    def fits(self, num_columns: int) -> bool:
        return num_columns % 32 == 0

    def tensors(self, name: str, shape: tuple[int, ...]) -> list[PlannedTensor]:
        stem = name.removesuffix(".weight")
        scale = PlannedTensor(f"{stem}.weight_scale", "U8", (shape[0], shape[1] // 32))
        if self.kind == "mxfp8":
            return [PlannedTensor(name, "F8_E4M3", shape), scale]
        return [PlannedTensor(f"{stem}.weight_packed", "U8", (shape[0], shape[1] // 2)), scale]

    def round(self, weight: Tensor, importance: Tensor | None = None) -> MicroCodes:
        groups = weight.view(len(weight), -1, 32)
        weights = torch.ones(32, device=weight.device) if importance is None else importance.view(-1, 32)
        top = 2 if self.kind == "mxfp4" else 8
        floor = torch.floor(torch.log2(groups.abs().amax(-1).clamp(min=2.0**-120))) - top
        tried = []
        for exponents in (floor.clamp(-127, 127), (floor + 1).clamp(-127, 127)):
            scales = torch.exp2(exponents).unsqueeze(-1)
            values = self._nearest(groups / scales)
            tried.append((exponents, values, ((values * scales - groups).square_() * weights).sum(-1)))
        (small, fine, off), (large, coarse, more) = tried
        is_better = more < off
        exponents = torch.where(is_better, large, small)
        values = torch.where(is_better.unsqueeze(-1), coarse, fine)
        return MicroCodes(values.flatten(1), (exponents + 127).to(torch.uint8))

    def _nearest(self, values: Tensor) -> Tensor:
        if self.kind == "mxfp8":
            return values.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).float()
        levels = FP4_LEVELS.to(values.device)
        middles = (levels[1:] + levels[:-1]) / 2
        return torch.copysign(levels[torch.bucketize(values.abs(), middles)], values)

    def write(self, name: str, codes: MicroCodes) -> dict[str, Array]:
        stem = name.removesuffix(".weight")
        scales = {f"{stem}.weight_scale": raw(codes.exponents)}
        if self.kind == "mxfp8":
            return scales | {name: raw(codes.values.to(torch.float8_e4m3fn))}
        levels = FP4_LEVELS.to(codes.values.device)
        numbers = torch.bucketize(codes.values.abs(), levels).to(torch.uint8) | (codes.values.signbit().byte() << 3)
        return scales | {f"{stem}.weight_packed": raw(numbers[:, ::2] | (numbers[:, 1::2] << 4))}

    def bits_per_weight(self, num_columns: int) -> float:
        return (4 if self.kind == "mxfp4" else 8) + 8 / 32


Encoding = BlockEncoding | IntegerEncoding | Float8Encoding | MicroEncoding
AnyCodes = BlockCodes | IntegerCodes | ScaledCodes | MicroCodes
