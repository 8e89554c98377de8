"""What adapters add to the products of a layer of Llama-3.1-8B, recorded as a step is: cuts of the kernels side by side.

    python -m benchmarks.gpu.tune_lora [--tokens 64] [--dry]

Each figure is microseconds a layer beyond that of the products and the gate alone; `aside` shrinks on another stream
while the product is computed.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.lora import LoraBank, tile_tokens
from penstock.runtime.ops.triton.grouped import lora
from penstock.runtime.ops.triton.grouped.lora import LoraCut

SHAPES = (((4096, 1024, 1024), 4096), ((4096,), 4096), ((14336, 14336), 4096), ((4096,), 14336))
LAYERS, RANK, SLOTS = 6, 16, 33
TOLERANCE = 0.07
CUTS = {
    "as it is": lora.CUT,
    "spread 1": LoraCut(spread=1),
    "spread 4": LoraCut(spread=4),
    "block 512": LoraCut(block=512),
    "block 128": LoraCut(block=128),
    "block 512 splits 16": LoraCut(block=512, splits=16),
    "block 512 splits 4": LoraCut(block=512, splits=4),
    "block 128 splits 16": LoraCut(block=128, splits=16),
    "shrink warps 2": LoraCut(shrink_warps=2),
    "shrink warps 8": LoraCut(shrink_warps=8, block=512),
    "rows 64": LoraCut(rows=64),
    "rows 256": LoraCut(rows=256),
    "rows 64 warps 2": LoraCut(rows=64, expand_warps=2),
    "gated 64": LoraCut(gated_rows=64),
    "gated 256": LoraCut(gated_rows=256, gated_warps=8),
    "gated 64 warps 2": LoraCut(gated_rows=64, gated_warps=2),
}
ASIDE = ("as it is", "spread 4", "block 512")


class Layers:
    def __init__(self, tokens: int, device: torch.device, dtype: torch.dtype, divisor: int) -> None:
        self.shapes = [(tuple(size // divisor for size in sizes), size // divisor) for sizes, size in SHAPES]
        self.x = {size: torch.randn((tokens, size), device=device, dtype=dtype) for _, size in self.shapes}
        self.weights = [
            [torch.randn((sum(sizes), size), device=device, dtype=dtype) * size**-0.5 for sizes, size in self.shapes]
            for _ in range(LAYERS)
        ]
        self.banks = [[self._bank(sizes, size, device, dtype) for sizes, size in self.shapes] for _ in range(LAYERS)]
        self.made: list[Tensor] = []
        """What the last run made, product by product."""

    def _bank(self, sizes: tuple[int, ...], size: int, device: torch.device, dtype: torch.dtype) -> LoraBank:
        room = RANK * (len(sizes) * size + sum(sizes))
        numbers = torch.randn((SLOTS - 1, room), device=device, dtype=dtype) * 0.02
        places = torch.tensor([[0] * 4] + [[RANK, 0, RANK * len(sizes) * size, 0]] * (SLOTS - 1), dtype=torch.int32)
        return LoraBank(numbers, places.to(device), torch.ones((SLOTS, sum(sizes)), device=device), RANK)

    def plain(self) -> None:
        for weights in self.weights:
            for number, ((_, size), weight) in enumerate(zip(self.shapes, weights)):
                y = functional.linear(self.x[size], weight)
                if number == 2:
                    gate(y, "silu")

    def adapted(self, slots: Tensor) -> None:
        self.made = []
        tiles = tile_tokens(slots, SLOTS)
        for weights, banks in zip(self.weights, self.banks):
            for number, ((sizes, size), weight, bank) in enumerate(zip(self.shapes, weights, banks)):
                x = self.x[size]
                told = x, partial(functional.linear, x, weight), None, tiles, slots, bank, sizes
                add = lora.add_thin_products if number != 2 else partial(lora.gate_thin_products, activation="silu")
                self.made.append(add(*told))


def timed(run: Callable[[], None], is_dry: bool) -> float:
    """Microseconds a layer, recorded and replayed."""
    run()
    if is_dry:
        return 0.0
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 100 / LAYERS)
    return statistics.median(found)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    if not asked.dry:
        torch.backends.cuda.preferred_blas_library("cublaslt")
    place = ("cpu", torch.float32, 64) if asked.dry else ("cuda", torch.bfloat16, 1)
    layers = Layers(asked.tokens, torch.device(place[0]), place[1], place[2])
    device = torch.device(place[0])
    plain = timed(layers.plain, asked.dry)
    print(f"products and gate alone: {plain:.1f} us a layer of {asked.tokens} tokens", flush=True)
    slots = {n: (torch.arange(asked.tokens, device=device) % n + 1).int() for n in (1, 8, 32)}
    expected: dict[int, list[Tensor]] = {}
    aside = {f"aside, {name}": CUTS[name]._replace(is_aside=True) for name in ASIDE}
    for name, cut in (CUTS | aside).items():
        lora.CUT = cut
        figures = []
        for n, chosen in slots.items():
            run = partial(layers.adapted, chosen)
            extra = timed(run, asked.dry) - plain
            made = [each.float().clone() for each in layers.made]
            truth = expected.setdefault(n, made)
            wrong = max(float((one - other).abs().max()) for one, other in zip(made, truth))
            figures.append(f"{n}: +{extra:5.1f}" + (f" (differs by {wrong:.3g})" if wrong > TOLERANCE else ""))
        print(f"{name:28} {'  '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
