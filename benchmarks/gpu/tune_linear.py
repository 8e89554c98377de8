"""Products of bfloat16 matrices at the shapes of Llama-3.1-8B and Qwen3-0.6B: the library's two ways, and ours.

python -m benchmarks.gpu.tune_linear [--dry] [--only NAME] [--json FILE]
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run

SHAPES = {
    "8b": {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)},
    "0.6b": {"qkv": (4096, 1024), "out": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072)},
}
ROWS = {"8b": (8, 32, 64, 2048), "0.6b": (16, 32, 64)}
TILE_CONFIGS = [
    (16, 256, 4, 4), (16, 512, 4, 3), (16, 512, 2, 3), (16, 256, 1, 4), (32, 256, 4, 4), (32, 128, 2, 4),
    (64, 128, 4, 4), (64, 256, 4, 3), (64, 128, 4, 4, 2), (64, 256, 4, 3, 2), (64, 128, 4, 4, 4), (128, 128, 4, 3, 4),
    (128, 64, 4, 4, 4),
]  # fmt: skip


class Product:
    def __init__(self, place: Place, shape: tuple[int, int], num_rows: int) -> None:
        num_out, size = (place.size(side, 64) for side in shape)
        generator = torch.Generator(place.device).manual_seed(0)
        options = {"dtype": place.dtype, "device": place.device}
        self.x = [torch.empty((num_rows, size), **options).normal_(generator=generator) for _ in range(NUM_SETS)]
        weights = [torch.empty((num_out, size), **options) for _ in range(NUM_SETS)]
        self.weights = [weight.normal_(std=size**-0.5, generator=generator) for weight in weights]
        self.flops = 2.0 * num_rows * num_out * size
        self.moved = 2.0 * num_out * size

    def library(self, name: str, number: int) -> Tensor:
        torch.backends.cuda.preferred_blas_library(name)
        return functional.linear(self.x[number], self.weights[number])

    def ours(self, config: tuple[int, ...], number: int) -> Tensor:
        from penstock.runtime.ops.triton.host.tile_table import TileConfig
        from penstock.runtime.ops.triton.small_batch import small_batch

        return small_batch(self.x[number], self.weights[number], None, self.x[number].dtype, TileConfig(*config))


def build(place: Place) -> list[Case]:
    cases = []
    for model, shapes in SHAPES.items():
        for num_rows in ROWS[model] if not place.is_dry else (2, 20):
            for name, shape in shapes.items():
                product = Product(place, shape, num_rows)
                group, is_small_batch = f"{model} {name} {num_rows}", num_rows <= 64
                rates = (product.moved, 0.0) if is_small_batch else (0.0, product.flops)
                for library in ("cublas", "cublaslt") if not place.is_dry else ():
                    cases.append(Case(group, library, partial(product.library, library), *rates))
                for config in TILE_CONFIGS if is_small_batch else ():
                    cases.append(Case(group, str(config), partial(product.ours, config), *rates))
    return cases


def check(place: Place) -> list[Check]:
    product = Product(place, SHAPES["0.6b"]["down"], 7)
    truth = functional.linear(product.x[0].float(), product.weights[0].float())
    return [(f"{config}", relative_error(product.ours(config, 0), truth), 1e-2) for config in TILE_CONFIGS]


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.tune_linear")
