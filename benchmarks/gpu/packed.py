"""Products with 4-bit and 8-bit matrices at the shapes of Llama-3.1-8B: parity, and ways of cutting each launch beside bf16.

python -m benchmarks.gpu.packed [--dry] [--only NAME] [--json FILE]
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, PackedWords, arrange

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 8, 32, 64, 128)
TILE_CONFIGS = [
    (rows, warps, stages, splits) for rows, warps in ((64, 4), (128, 8)) for stages in (2, 3) for splits in (1, 2, 4, 8)
]
"""Rows of the matrix, warps, loads under way, programs the columns are split over."""


def random_words(place: Place, shape: tuple[int, int], bits: int, share: int = 1) -> PackedWords:
    num_out, size = shape
    generator = torch.Generator(place.device).manual_seed(bits)
    values = torch.randint(
        0, 256, (num_out, size // GROUP, GROUP * bits // 8), dtype=torch.uint8, generator=generator, device=place.device
    )
    scales = torch.rand((num_out, size // GROUP // share), generator=generator, device=place.device)
    scales = (scales * 2.0 ** (2 - bits) * size**-0.5).repeat_interleave(share, 1).half()
    if bits == 8:
        return arrange(Grouped(values.view(torch.int8), scales, None))
    return arrange(Grouped(values, scales, -scales * 7.5))


class Matrix:
    """One shape's matrix in all forms; as many of them as keep each other out of the cache."""

    def __init__(self, place: Place, shape: tuple[int, int]) -> None:
        self.place = place
        self.shape = (place.size(shape[0], 64), place.size(shape[1], 512))
        self.words = {bits: [random_words(place, self.shape, bits) for _ in range(NUM_SETS)] for bits in (4, 8)}
        self.plain = [torch.empty(self.shape, dtype=place.dtype, device=place.device) for _ in range(NUM_SETS)]
        for weight in self.plain:
            weight.normal_(0, self.shape[1] ** -0.5)

    def rows(self, num_rows: int) -> list[Tensor]:
        shape = (num_rows, self.shape[1])
        return [torch.randn(shape, device=self.place.device).to(self.place.dtype) for _ in range(NUM_SETS)]


def _small_batch(matrix: Matrix, bits: int, rows: list[Tensor], config: tuple[int, ...], number: int) -> Tensor:
    from penstock.runtime.ops.triton import packed
    from penstock.runtime.ops.triton.host.tile_table import TileConfig

    tiles = TileConfig(config[0], 1, *config[1:])
    return packed.small_batch(rows[number], matrix.words[bits][number], None, config=tiles)


def _many(matrix: Matrix, bits: int, rows: list[Tensor], number: int) -> Tensor:
    from penstock.runtime.ops.triton import packed

    return packed.many_rows(rows[number], matrix.words[bits][number], None)


def _plain(matrix: Matrix, rows: list[Tensor], number: int) -> Tensor:
    return functional.linear(rows[number], matrix.plain[number])


def build(place: Place) -> list[Case]:
    cases = []
    for name, shape in SHAPES.items():
        matrix = Matrix(place, shape)
        for num_rows in ROWS:
            group = f"{name} {num_rows}"
            rows = matrix.rows(place.size(num_rows, min(num_rows, 20)))
            for bits in (4, 8):
                moved = float(matrix.words[bits][0].nbytes)
                for config in TILE_CONFIGS:
                    cases.append(
                        Case(group, f"W{bits} {config}", partial(_small_batch, matrix, bits, rows, config), moved)
                    )
                if num_rows > 16:
                    cases.append(Case(group, f"W{bits} copy", partial(_many, matrix, bits, rows), moved))
            cases.append(Case(group, "bf16", partial(_plain, matrix, rows), float(matrix.plain[0].nbytes)))
    return cases


def report(cases: Sequence[Case], times: Sequence[float]) -> None:
    """The best config of each width beside the library, by shape and number of rows."""
    print(f"{'':14}" + "".join(f"{title:>40}" for title in ("W4", "W8", "bf16")))
    for group in dict.fromkeys(case.group for case in cases):
        cells = []
        for start in ("W4", "W8", "bf16"):
            found = [
                (took, case) for case, took in zip(cases, times) if case.group == group and case.label.startswith(start)
            ]
            took, best = min(found, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
            config = best.label.removeprefix(start).strip()
            cells.append(f"{config} {took * 1e6:.1f}us {best.moved_bytes / took / 1e9:.0f}GB/s")
        print(f"{group:14}" + "".join(f"{cell:>40}" for cell in cells))


def check(place: Place) -> list[Check]:
    from penstock.runtime.ops.quantized.packed import embed_packed, gated_linear_packed, linear_packed, scores_packed

    checks: list[Check] = []
    shape = (place.size(4096, 64), place.size(14336, 512))
    for bits, share in ((4, 1), (8, 1), (4, 4)):
        weight = random_words(place, shape, bits, share)
        for num_rows in (1, 4, 16, 32, 128, place.size(300, 260)) if share == 1 else (1, 16):
            x = torch.randn((num_rows, shape[1]), device=place.device).to(place.dtype)
            error = relative_error(linear_packed(x, weight, None), linear_packed.definition(x.float(), weight, None))
            checks.append((f"W{bits} in groups of {weight.group}, {num_rows} rows", error, 1e-2))
    weight = random_words(place, shape, 4)
    for num_rows in (1, 5):
        x = torch.randn((num_rows, shape[1]), device=place.device).to(place.dtype)
        made, reported = (op(each, weight, None, "silu") for op, each in _pair(gated_linear_packed, x))
        checks.append((f"gated, {num_rows} rows", relative_error(made, reported), 2e-2))
        made, reported = (op(each, weight) for op, each in _pair(scores_packed, x))
        checks.append((f"scores, {num_rows} rows", relative_error(made, reported), 1e-2))
    ids = torch.tensor([5, 0, shape[0] - 1], device=place.device)
    reported = embed_packed.definition(ids, weight, 2.0, torch.float32)
    checks.append(("looked up", relative_error(embed_packed(ids, weight, 2.0, place.dtype), reported), 1e-2))
    return checks


def _pair(op: Any, x: Tensor) -> tuple[tuple[Any, Tensor], tuple[Any, Tensor]]:
    """The kernel in the numbers that are served, the definition in float32."""
    return (op, x), (op.definition, x.float())


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.packed", seconds=50.0, report=report)
