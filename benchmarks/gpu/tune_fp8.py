"""Products with 8-bit floats at the shapes of Llama-3.1-8B: parity, and ways of cutting each launch.

python -m benchmarks.gpu.tune_fp8 [--dry] [--only NAME] [--json FILE]
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
SMALL_BATCH_CUTS = [
    (64, 256, 4, 4), (64, 256, 4, 4, 2), (64, 256, 4, 4, 4), (64, 512, 4, 3), (64, 512, 4, 3, 2), (64, 128, 4, 6),
    (128, 256, 4, 3, 2), (128, 128, 8, 4), (128, 128, 8, 4, 2), (128, 128, 8, 4, 4), (128, 128, 4, 4, 4),
]  # fmt: skip


class Matrix:
    """One shape's matrix in both forms; as many of them as keep each other out of the cache."""

    def __init__(self, place: Place, shape: tuple[int, int]) -> None:
        from penstock.runtime.ops.quantized.fp8 import round_rows

        num_out, size = (place.size(shape[0], 32), place.size(shape[1], 64))
        generator = torch.Generator(place.device).manual_seed(0)
        self.place, self.size, self.num_out = place, size, num_out
        self.generator = generator
        self.plain = [self.normal(num_out, size) * size**-0.5 for _ in range(NUM_SETS)]
        self.rounded = [round_rows(weight) for weight in self.plain]

    def normal(self, *shape: int) -> Tensor:
        values = torch.empty(shape, dtype=self.place.dtype, device=self.place.device)
        return values.normal_(generator=self.generator)

    def rows(self, num_rows: int) -> list[Tensor]:
        return [self.normal(num_rows, self.size) for _ in range(NUM_SETS)]


def _small_batch(matrix: Matrix, rows: list[Any], config: tuple[int, ...], number: int) -> Tensor:
    from penstock.runtime.ops.triton.host.tile_table import TileConfig
    from penstock.runtime.ops.triton.small_batch import Scales, small_batch

    (values, scales), weight = rows[number], matrix.rounded[number]
    return small_batch(
        values, weight.values, None, matrix.place.dtype, TileConfig(*config), scales=Scales(scales, weight.scales)
    )


def _library(matrix: Matrix, rows: list[Any], number: int) -> Tensor:
    from penstock.runtime.ops.triton import fp8

    return fp8.multiply_scaled(*rows[number], matrix.rounded[number], None, matrix.place.dtype)


def _scaled(matrix: Matrix, rows: list[Any], number: int) -> Tensor:
    from penstock.runtime.ops.quantized.fp8 import multiply_fp8

    return multiply_fp8(*rows[number], matrix.rounded[number], None, matrix.place.dtype)


def _rounded(matrix: Matrix, rows: list[Tensor], number: int) -> Tensor:
    from penstock.runtime.ops.quantized.fp8 import multiply_fp8, round_rows

    return multiply_fp8(*round_rows(rows[number]), matrix.rounded[number], None, matrix.place.dtype)


def _plain(matrix: Matrix, rows: list[Tensor], number: int) -> Tensor:
    return functional.linear(rows[number], matrix.plain[number])


def build(place: Place) -> list[Case]:
    from penstock.runtime.ops.quantized.fp8 import round_gated, round_normed, round_rows

    cases = []
    for name, shape in SHAPES.items():
        matrix = Matrix(place, shape)
        moved = float(matrix.size * matrix.num_out)
        for num_rows in (1, 16, 64, 128):
            rows = matrix.rows(place.size(num_rows, min(num_rows, 2)))
            ready = [round_rows(each) for each in rows]
            group = f"{name} {num_rows}"
            for numbers in SMALL_BATCH_CUTS:
                cases.append(Case(group, str(numbers), partial(_small_batch, matrix, ready, numbers), moved))
            if not place.is_dry:
                cases.append(Case(group, "library", partial(_library, matrix, ready), moved))
            cases.append(Case(group, "library bf16", partial(_plain, matrix, rows), moved))
        for num_rows in (256, 4000):
            rows = matrix.rows(place.size(num_rows, 20))
            work = 2.0 * len(rows[0]) * matrix.size * matrix.num_out
            ready = [round_rows(each) for each in rows]
            cases.append(Case(f"{name} {num_rows}", "rounded", partial(_rounded, matrix, rows), 0, work))
            cases.append(Case(f"{name} {num_rows}", "product alone", partial(_scaled, matrix, ready), 0, work))
            cases.append(Case(f"{name} {num_rows}", "library bf16", partial(_plain, matrix, rows), 0, work))
    pairs = [matrix.normal(place.size(4000, 3), place.size(28672, 64)) for _ in range(NUM_SETS)]
    cases.append(Case("round gated 4000", "", lambda n: round_gated(pairs[n], "silu"), pairs[0].numel() * 2.5))
    sums = [matrix.normal(place.size(4000, 3), place.size(4096, 64)) for _ in range(2 * NUM_SETS)]
    ones = torch.ones(sums[0].shape[1], device=place.device)
    normed = lambda n: round_normed(sums[n], sums[NUM_SETS + n], ones, 1e-5)  # noqa: E731
    cases.append(Case("round normed 4000", "", normed, sums[0].numel() * 7.0))
    return cases


def check(place: Place) -> list[Check]:
    from penstock.runtime.ops.quantized.fp8 import Fp8, multiply_fp8, round_rows

    matrix = Matrix(place, SHAPES["down"])
    weight = matrix.rounded[0]
    checks = []
    for num_rows in (1, 2, 7, 16):
        rounded = round_rows(matrix.rows(num_rows)[0])
        reference = multiply_fp8.definition(*rounded, weight, None, torch.float32)
        for numbers in SMALL_BATCH_CUTS:
            mine = _small_batch(matrix, [rounded], numbers, 0)
            checks.append((f"few rows {num_rows} {numbers}", relative_error(mine, reference), 1e-2))
    x = matrix.rows(place.size(300, 20))[0]
    values, scales = round_rows(x)
    reported = round_rows.definition(x)
    checks.append(("rounded rows differ", float((values.float() != reported.values.float()).float().mean()), 1e-4))
    reference = multiply_fp8.definition(values, scales, weight, None, torch.float32)
    mine = multiply_fp8(values, scales, weight, None, place.dtype)
    checks.append(("product of rounded rows", relative_error(mine, reference), 1e-2))
    exact = functional.linear(x.float(), matrix.plain[0].float())
    checks.append(("rounding of both sides", relative_error(mine, exact), 6e-2))
    ruined = x.clone()
    ruined[3, 5] = torch.nan
    made = multiply_fp8(*round_rows(ruined), Fp8(*weight), None, place.dtype)
    is_kept = bool(made[3].isnan().all()) and not bool(made[:3].isnan().any() or made[4:].isnan().any())
    checks.append(("a NaN ruins its own row alone", 0.0 if is_kept else 1.0, 0.0))
    return checks


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.tune_fp8")
