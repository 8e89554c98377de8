"""What adapters add to the products of a layer of Llama-3.1-8B, recorded as a step is: cuts of the kernels side by side.

    python -m benchmarks.gpu.tune_lora [--tokens 64] [--only WORD] [--profile] [--dry]

Each figure is microseconds beyond the product alone (of gate and up: the product and the gate), product by product, then their
sum: over 1, 8 and 32 adapters. Shrinking goes on beside the product, on another stream. What each cut makes is compared
with the definition first. Kernels are compiled by processes side by side before anything is timed.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.grouped import lora as definition
from penstock.runtime.ops.grouped.lora import LoraBank, add_lora, add_lora_gated, tile_tokens
from penstock.runtime.ops.triton.grouped import lora
from penstock.runtime.ops.triton.host.tile_table import ACTIVE, ANY, H200, TileConfig, TileRow, tiles_of, use_device

SITES = {
    "qkv": ((4096, 1024, 1024), 4096),
    "o": ((4096,), 4096),
    "gate_up": ((14336, 14336), 4096),
    "down": ((4096,), 14336),
}
LAYERS, RANK, SLOTS = 6, 16, 33
AIMS = {1: 23.0, 8: 31.0, 32: 37.0}
"""Microseconds a layer over so many adapters: 0.90, 0.87 and 0.85 of the base's pace."""
ADAPTERS = tuple(AIMS)
TOLERANCE = 0.02
COMPILERS = 14
SHRINK, EXPANDS = "adapters shrink", ("adapters expand", "adapters expand gated")
AS_TILED = definition.TILES


def shrinking(**changes: int) -> dict[str, TileConfig]:
    return {SHRINK: replace(H200[SHRINK][0].config, **changes)}


def expanding(**changes: int) -> dict[str, TileConfig]:
    return {family: replace(H200[family][0].config, **changes) for family in EXPANDS}


CUTS: dict[str, dict[str, TileConfig]] = {
    "first turn": {},
    "as it is": {},
    "splits 16": shrinking(splits=16),
    "splits 4": shrinking(splits=4),
    "splits 4, stages 3": shrinking(splits=4, stages=3),
    "stages 1": shrinking(stages=1),
    "stages 3": shrinking(stages=3),
    "block 128": shrinking(block=128),
    "rows 64 warps 2": expanding(rows=64, warps=2),
    "rows 128 warps 2": expanding(warps=2),
    "rows 256": expanding(rows=256),
    "rows 256 warps 8": expanding(rows=256, warps=8),
    "rows 256 splits 16": expanding(rows=256) | shrinking(splits=16),
}
"""By family, what differs from the table, for tiles of fewer than 64 tokens."""
TILES = {"tiles 8": ((512, 8),), "tiles 32": ((512, 32),)}
"""Cuts of tokens instead."""


class Products:
    """One product of several layers, the adapters over it and its input."""

    def __init__(self, name: str, tokens: int, device: torch.device, dtype: torch.dtype, divisor: int) -> None:
        sizes, size = SITES[name]
        self.is_gated = name == "gate_up"
        self.sizes, size = tuple(each // divisor for each in sizes), size // divisor
        outputs, parts = sum(self.sizes), len(sizes)
        self.x = torch.randn((tokens, size), device=device, dtype=dtype)
        drawn = partial(torch.randn, device=device, dtype=dtype)
        self.weights = [drawn((outputs, size)) * size**-0.5 for _ in range(LAYERS)]
        told = [[0] * 4] + [[RANK, 0, RANK * parts * size, 0]] * (SLOTS - 1)
        self.places = torch.tensor(told, dtype=torch.int32, device=device)
        factors = torch.ones((SLOTS, outputs), device=device)
        self.banks = [
            LoraBank(drawn((SLOTS - 1, RANK * (parts * size + outputs))) * 0.1, self.places, factors, RANK)
            for _ in range(LAYERS)
        ]
        self.made: list[Tensor] = []

    def plain(self) -> None:
        for weight in self.weights:
            y = functional.linear(self.x, weight)
            if self.is_gated:
                gate(y, "silu")

    def adapted(self, slots: Tensor, add: Callable[..., Tensor] = lora.add_thin_products) -> None:
        tiles = tile_tokens(slots, self.places[:, None])
        self.made = []
        if self.is_gated:
            add = add_lora_gated.definition if add is add_lora.definition else lora.gate_thin_products
        for weight, bank in zip(self.weights, self.banks):
            product = partial(functional.linear, self.x, weight)
            told = self.x, product, None, tiles, slots, bank, self.sizes
            self.made.append(add(*told, "silu") if self.is_gated else add(*told))


def recorded(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def timed(run: Callable[[], None], is_dry: bool) -> float:
    """Microseconds a layer, recorded and replayed."""
    run()
    if is_dry:
        return 0.0
    graph, found = recorded(run), []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 100 / LAYERS)
    return statistics.median(found)


def profile(products: Products, slots: Tensor) -> None:
    """How long each kernel runs, and how long after the one before it ends it begins, in a recorded step."""
    graph = recorded(partial(products.adapted, slots))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
    events = sorted(
        (event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda event: event.time_range.start,
    )
    last, found = 0.0, {}
    for event in events:
        gap = event.time_range.start - last
        found.setdefault(event.name[:40], []).append((event.time_range.end - event.time_range.start, gap))
        last = event.time_range.end
    for name, each in found.items():
        took, gaps = (statistics.median(column) for column in zip(*each))
        print(f"    {name:40} {took:6.2f} us, {gaps:6.2f} after the one before, {len(each)} times", flush=True)


class Bench:
    def __init__(self, tokens: int, is_dry: bool) -> None:
        device, dtype, divisor = ("cpu", torch.float32, 64) if is_dry else ("cuda", torch.bfloat16, 1)
        self.is_dry = is_dry
        self.sites = {name: Products(name, tokens, torch.device(device), dtype, divisor) for name in SITES}
        self.slots = {n: (torch.arange(tokens, device=device) % n + 1).int() for n in ADAPTERS}
        self.truths: dict[tuple[str, int], list[Tensor]] = {}

    def compare(self) -> float:
        """The largest difference from the definition, in shares of its length."""
        worst = 0.0
        for name, products in self.sites.items():
            for n, slots in self.slots.items():
                if (name, n) not in self.truths:
                    products.adapted(slots, add_lora.definition)
                    self.truths[name, n] = [made.float() for made in products.made]
                products.adapted(slots)
                for made, truth in zip(products.made, self.truths[name, n]):
                    worst = max(worst, float((made.float() - truth).norm() / truth.norm()))
        return worst

    def row(self, plain: dict[str, float]) -> tuple[str, float]:
        """As it is printed, and how much of what is aimed at it takes, at worst."""
        found = {n: {} for n in ADAPTERS}
        for name, products in self.sites.items():
            for n, slots in self.slots.items():
                found[n][name] = timed(partial(products.adapted, slots), self.is_dry) - plain[name]
        told = "  ".join(
            f"{n:2}: " + " ".join(f"{took:5.1f}" for took in took_of.values()) + f" ={sum(took_of.values()):6.1f}"
            for n, took_of in found.items()
        )
        return told, max(sum(took_of.values()) / AIMS[n] for n, took_of in found.items())


def choose(name: str) -> None:
    definition.TILES = TILES.get(name, AS_TILED)
    use_device("")
    for family, config in CUTS.get(name, {}).items():
        ACTIVE[family] = (TileRow(config, num_rows=(0, 63), value_bytes=ANY), *H200[family])
    tiles_of.cache_clear()


def compile_cuts(tokens: int, names: list[str]) -> None:
    """All cuts, in processes side by side, into the folder that this one reads."""
    words = [sys.executable, "-m", "benchmarks.gpu.tune_lora", "--tokens", str(tokens), "--compile"]
    waiting = [subprocess.Popen([*words, *names[at::COMPILERS]]) for at in range(min(COMPILERS, len(names)))]
    for one in waiting:
        one.wait()


@torch.inference_mode()
def main() -> None:
    global LAYERS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", default="", help="cuts whose name has this word")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--write", help="the name of the best cut goes to this file")
    parser.add_argument("--compile", nargs="+", help="compile these cuts and time nothing")
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    begin_s = time.perf_counter()
    if asked.compile:
        LAYERS = 1
        bench = Bench(asked.tokens, asked.dry)
        for name in asked.compile:
            choose(name)
            for products in bench.sites.values():
                products.adapted(bench.slots[1])
        return
    names = [name for name in (*CUTS, *TILES) if asked.only in name]
    if not asked.dry:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        compile_cuts(asked.tokens, names)
        print(f"compiled in {time.perf_counter() - begin_s:.0f} s", flush=True)
    bench = Bench(asked.tokens, asked.dry)
    plain = {name: timed(products.plain, asked.dry) for name, products in bench.sites.items()}
    alone = ", ".join(f"{name} {took:.1f}" for name, took in plain.items())
    print(f"{asked.tokens} tokens, alone: {alone}, {sum(plain.values()):.1f} us", flush=True)
    best = (math.inf, "as it is")
    for name in names:
        choose(name)
        wrong = bench.compare()
        row, share = bench.row(plain)
        told = f"{name:26} {row}"
        if wrong < TOLERANCE:
            best = min(best, (share, name))
        print(told + (f"  WRONG by {wrong:.3g}" if not wrong < TOLERANCE else f"  ({wrong:.1e})"), flush=True)
    print(f"best: {best[1]}", flush=True)
    if asked.write is not None:
        Path(asked.write).write_text(best[1])
    if asked.profile and not asked.dry:
        choose("as it is")
        for n in (1, 32):
            for name, products in bench.sites.items():
                print(f"{name} over {n}:", flush=True)
                profile(products, bench.slots[n])


if __name__ == "__main__":
    main()
