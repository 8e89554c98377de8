"""Matrices as whole numbers in groups of inputs: scale * (value - zero). How values are found is `gptq`'s or plain rounding's.

Three layouts of the same numbers are written: compressed-tensors' "pack-quantized", AutoAWQ's "gemm" and GPTQ's.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.runtime.formats.tensor_file import PlannedTensor

Layout = Literal["compressed", "awq", "gptq"]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs stands at each place of an AutoAWQ word."""
SHRINKS = torch.linspace(1.0, 0.6, 21)
"""Parts of a group's range that are tried where importances are known: large values clipped, the others finer."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What numbers a group may take: fixed before values are chosen. Both are [rows, groups]."""

    scales: Tensor
    zeros: Tensor
    most: int
    group: int

    def spread(self) -> tuple[Tensor, Tensor]:
        """Scales and zeros of every input, [rows, columns]."""
        return self.scales.repeat_interleave(self.group, 1), self.zeros.repeat_interleave(self.group, 1)

    def nearest(self, weight: Tensor) -> Tensor:
        scales, zeros = self.spread()
        return (weight / scales + zeros).round_().clamp_(0, self.most)


@dataclass(frozen=True, slots=True)
class IntegerCodes:
    values: Tensor
    """[rows, columns], bytes."""
    grid: Grid

    def restored(self) -> Tensor:
        scales, zeros = self.grid.spread()
        return (self.values.float() - zeros) * scales

    def take(self, rows: Tensor) -> "IntegerCodes":
        rows = rows.to(self.values.device)
        grid = replace(self.grid, scales=self.grid.scales[rows], zeros=self.grid.zeros[rows])
        return IntegerCodes(self.values[rows], grid)


@dataclass(frozen=True, slots=True)
class IntegerEncoding:
    bits: int
    group: int | None
    """Inputs that share a scale; None for a whole row."""
    symmetric: bool
    layout: Layout
    scale_dtype: torch.dtype
    activations: int = 0
    """Bits that what is multiplied with the matrix is rounded to, too; 0 for none."""

    @property
    def most(self) -> int:
        return (1 << self.bits) - 1

    def fits(self, num_columns: int) -> bool:
        return num_columns % 32 == 0 and num_columns % (self.group or 1) == 0

    def grid(self, weight: Tensor, importance: Tensor | None = None) -> Grid:
        """Every group's range, from its least to its largest number; where importances of inputs are known, that part of it
        with the least error behind the matrix."""
        group = self.group or weight.shape[1]
        groups = weight.reshape(len(weight), -1, group)
        best = self._grid_of(groups, 1.0, group)
        if importance is None:
            return best
        weights = importance.view(-1, group)
        least = self._error(groups, best, weights)
        for shrink in SHRINKS[1:]:
            tried = self._grid_of(groups, float(shrink), group)
            error = self._error(groups, tried, weights)
            is_better = error < least
            least = torch.where(is_better, error, least)
            scales = torch.where(is_better, tried.scales, best.scales)
            best = replace(best, scales=scales, zeros=torch.where(is_better, tried.zeros, best.zeros))
        return best

    def _grid_of(self, groups: Tensor, shrink: float, group: int) -> Grid:
        high, low = groups.amax(-1).clamp_(min=0) * shrink, groups.amin(-1).clamp_(max=0) * shrink
        if self.symmetric:
            middle = 1 << (self.bits - 1)
            scales = torch.maximum(high, -low) / (middle - 0.5)
        else:
            scales = (high - low) / self.most
        scales = scales.to(self.scale_dtype).float()
        scales = torch.where(scales > 0, scales, 1.0)
        if self.symmetric:
            return Grid(scales, torch.full_like(scales, 1 << (self.bits - 1)), self.most, group)
        return Grid(scales, (-low / scales).round_().clamp_(0, self.most), self.most, group)

    def _error(self, groups: Tensor, grid: Grid, importance: Tensor) -> Tensor:
        scales, zeros = grid.scales.unsqueeze(-1), grid.zeros.unsqueeze(-1)
        restored = ((groups / scales + zeros).round_().clamp_(0, self.most) - zeros).mul_(scales)
        return restored.sub_(groups).square_().mul_(importance).sum(-1)

    def round(self, weight: Tensor, importance: Tensor | None = None) -> IntegerCodes:
        grid = self.grid(weight, importance)
        return IntegerCodes(grid.nearest(weight).to(torch.uint8), grid)

    def tensors(self, name: str, shape: tuple[int, ...]) -> list[PlannedTensor]:
        """What `write` gives, before there are numbers."""
        num_out, num_in = shape
        per_word, groups = 32 // self.bits, num_in // (self.group or num_in)
        stem, scale = name.removesuffix(".weight"), "BF16" if self.scale_dtype == torch.bfloat16 else "F16"
        planned: list[tuple[str, str, tuple[int, ...]]]
        if self.layout == "compressed" and self.activations:
            planned = [("weight", "I8", (num_out, num_in)), ("weight_scale", scale, (num_out, groups))]
        elif self.layout == "compressed":
            planned = [
                ("weight_packed", "I32", (num_out, num_in // per_word)),
                ("weight_scale", scale, (num_out, groups)),
                ("weight_shape", "I64", (2,)),
            ]
            if not self.symmetric:
                planned.append(("weight_zero_point", "I32", (num_out // per_word, groups)))
        else:
            words = (num_in, num_out // 8) if self.layout == "awq" else (num_in // per_word, num_out)
            planned = [("qweight", "I32", words), ("qzeros", "I32", (groups, num_out // per_word))]
            planned.append(("scales", scale, (groups, num_out)))
            if self.layout == "gptq":
                planned.append(("g_idx", "I32", (num_in,)))
        return [PlannedTensor(f"{stem}.{last}", dtype, tuple(size)) for last, dtype, size in planned]

    def write(self, name: str, codes: IntegerCodes) -> dict[str, npt.NDArray[Any]]:
        stem = name.removesuffix(".weight")
        values, zeros = codes.values.cpu(), codes.grid.zeros.to(torch.uint8).cpu()
        scales = codes.grid.scales.to(self.scale_dtype).cpu()
        if self.layout == "compressed":
            parts: dict[str, npt.NDArray[Any]] = {"weight_scale": raw(scales)}
            if self.activations:
                return {f"{stem}.weight_scale": parts["weight_scale"], f"{stem}.weight": raw(values ^ 128)}
            parts |= {"weight_packed": _packed(values, self.bits), "weight_shape": np.array(values.shape, np.int64)}
            if not self.symmetric:
                parts["weight_zero_point"] = _packed(zeros.t(), self.bits).T
        else:
            parts = {"scales": raw(scales.t())}
            if self.layout == "awq":
                parts |= {"qweight": _packed(_for_awq(values.t()), 4), "qzeros": _packed(_for_awq(zeros.t()), 4)}
            else:
                # Readers of this layout add one to every zero.
                less = (zeros.int() - 1).bitwise_and(self.most).to(torch.uint8)
                group_of_input = np.arange(values.shape[1], dtype=np.int32) // codes.grid.group
                parts |= {"qweight": _packed(values, self.bits).T, "qzeros": _packed(less.t(), self.bits)}
                parts["g_idx"] = group_of_input
        return {f"{stem}.{last}": array for last, array in parts.items()}

    def bits_per_weight(self, num_columns: int) -> float:
        group = self.group or num_columns
        return self.bits + (16 + (0 if self.symmetric else self.bits)) / group


def raw(values: Tensor) -> npt.NDArray[np.uint8]:
    return values.contiguous().view(torch.uint8).cpu().numpy()


def _for_awq(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER].flatten(1)


def _packed(values: Tensor, bits: int) -> npt.NDArray[np.int32]:
    """[rows, columns] of bytes as words of neighbouring columns, the first lowest."""
    bytes_ = np.ascontiguousarray(values.numpy())
    if bits == 4:
        bytes_ = bytes_[:, ::2] | (bytes_[:, 1::2] << 4)
    return np.ascontiguousarray(bytes_).view(np.int32)
