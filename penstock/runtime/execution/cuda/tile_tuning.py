"""Tiles of small-batch GEMMs, timed on this GPU under sustained load: whichever is fastest while the chip is hot counts.

Candidates of a shape are timed by turns, each as a recorded graph that goes round several matrices so that none is found in
the cache. A config whose numbers are not those of the library's product is no candidate.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import ConfigError
from penstock.runtime.models.spec import GQA, GatedMLP, ModelSpec
from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of
from penstock.runtime.ops.triton.small_batch import small_batch

TILE_CONFIGS = tuple(
    TileConfig(rows, block, warps, stages, splits)
    for rows, block, warps, stages in (
        (16, 256, 4, 4),
        (16, 512, 2, 3),
        (32, 128, 2, 4),
        (32, 256, 4, 4),
        (64, 64, 4, 5),
        (64, 128, 4, 4),
        (64, 128, 4, 6),
        (64, 256, 4, 3),
        (128, 64, 4, 4),
        (128, 128, 4, 3),
    )
    for splits in (1, 2, 4)
)
BATCHES = (8, 32)
NUM_SETS = 4
NUM_TURNS = 7
TURN_LAUNCHES = 40
HEAT_S = 0.5
"""How long the chip computes before the first turn counts."""
WORTH = 0.98
"""Of the built-in config's time: what is not faster than this is not worth another choice."""
MOST_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class TileChoice:
    kernel: str
    num_out: int
    size: int
    config: tuple[int, ...]
    seconds: float
    """Over all batch sizes, of the choice."""
    builtin_s: float

    @property
    def gain(self) -> float:
        return self.builtin_s / self.seconds - 1.0

    @property
    def row(self) -> tuple[str, int, int, list[int]]:
        """As a file holds it."""
        return self.kernel, self.num_out, self.size, list(self.config)


def shapes_of(spec: ModelSpec) -> list[tuple[str, int, int]]:
    """Kernels, outputs and inputs of the products of a step, each once."""
    found: dict[tuple[str, int, int], None] = {}
    for layer in spec.layers:
        attention, mlp = layer.attention, layer.mlp
        if isinstance(attention, GQA):
            width = attention.num_heads * attention.head_dim
            found["linear", width + 2 * attention.num_kv_heads * attention.head_dim, spec.hidden_size] = None
            found["linear", spec.hidden_size, width] = None
        if isinstance(mlp, GatedMLP):
            found["gated", mlp.width, spec.hidden_size] = None
            found["linear", spec.hidden_size, mlp.width] = None
    return list(found)


def tune_tiles(spec: ModelSpec, device: torch.device) -> Iterator[TileChoice]:
    """The best config of each shape, whether or not it is another than the built-in one."""
    if device.type != "cuda":
        raise ConfigError("tiles of kernels are chosen on a GPU; a CPU's are part of the native library")
    for kernel, num_out, size in shapes_of(spec):
        builtin = tiles_of(kernel, num_out, size)
        configs = dict.fromkeys([builtin, *(one for one in TILE_CONFIGS if kernel != "gated" or one.splits == 1)])
        totals = dict.fromkeys(configs, 0.0)
        for num_rows in BATCHES:
            for config, seconds in _timed(kernel, num_out, size, num_rows, list(totals), device).items():
                totals[config] += seconds
        best = min(totals, key=totals.__getitem__)
        if totals[best] > WORTH * totals[builtin]:
            best = builtin
        yield TileChoice(kernel, num_out, size, astuple(best), totals[best], totals[builtin])


def _timed(
    kernel: str, num_out: int, size: int, num_rows: int, configs: list[TileConfig], device: torch.device
) -> dict[TileConfig, float]:
    """Median seconds of one launch of each; infinite for a config that does not compile, or computes something else."""
    make = torch.Generator(device).manual_seed(0)
    num_read = num_out * (2 if kernel == "gated" else 1)
    x = torch.randn((num_rows, size), generator=make, device=device).bfloat16()
    weights = [
        torch.randn((num_read, size), generator=make, device=device).bfloat16() / size**0.5 for _ in range(NUM_SETS)
    ]
    expected = _expected(kernel, x, weights[0])
    graphs = {}
    for config in configs:
        graph = _recorded(partial(_launch, kernel, x, config), weights, expected)
        if graph is not None:
            graphs[config] = graph
    _heat(device)
    times: dict[TileConfig, list[float]] = {config: [] for config in graphs}
    for _ in range(NUM_TURNS):
        for config, graph in graphs.items():
            begin, end = _events()
            begin.record()
            for _ in range(TURN_LAUNCHES // NUM_SETS):
                graph.replay()
            end.record()
            end.synchronize()
            times[config].append(begin.elapsed_time(end) / 1e3 / TURN_LAUNCHES)
    return {config: statistics.median(times[config]) if config in times else float("inf") for config in configs}


def _events() -> "tuple[torch.cuda.Event, torch.cuda.Event]":
    make = partial(torch.cuda.Event, enable_timing=True)
    return make(), make()


def _launch(kernel: str, x: Tensor, config: TileConfig, weight: Tensor) -> Tensor:
    return small_batch(x, weight, None, x.dtype, config, activation="silu" if kernel == "gated" else None)


def _expected(kernel: str, x: Tensor, weight: Tensor) -> Tensor:
    product = functional.linear(x.float(), weight.float())
    if kernel != "gated":
        return product
    gate, up = product.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _recorded(
    launch: Callable[[Tensor], Tensor], weights: list[Tensor], expected: Tensor
) -> "torch.cuda.CUDAGraph | None":
    try:
        out = launch(weights[0]).float()
        if not float((out - expected).norm()) <= MOST_ERROR * float(expected.norm()):
            return None
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for weight in weights:
                launch(weight)
    except Exception:  # too much shared memory, or registers: the compiler's own errors, of many types
        return None
    return graph


def _heat(device: torch.device) -> None:
    """Matrix products in a row: clocks fall to where a busy server has them."""
    big = torch.randn((8192, 8192), device=device).bfloat16()
    begin, end = _events()
    begin.record()
    while True:
        for _ in range(8):
            big @ big
        end.record()
        end.synchronize()
        if begin.elapsed_time(end) > 1e3 * HEAT_S:
            return
