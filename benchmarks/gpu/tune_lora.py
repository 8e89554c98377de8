"""What adapters add to the products of a layer of Llama-3.1-8B, recorded as a step is: cuts of the kernels side by side.

    python -m benchmarks.gpu.tune_lora [--tokens 64] [--dry]

Each figure is microseconds a layer beyond that of the products and the gate alone; `aside` begins shrinking on another stream
while the product is computed.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.lora import LoraBank, group_tokens
from penstock.runtime.ops.triton.grouped import lora
from penstock.runtime.ops.triton.grouped.lora import LoraCut

SHAPES = (((4096, 1024, 1024), 4096), ((4096,), 4096), ((14336, 14336), 4096), ((4096,), 14336))
LAYERS, RANK, SLOTS = 6, 16, 33
CUTS = {
    "as it is": lora.CUT,
    "splits 4": LoraCut(splits=4),
    "splits 16": LoraCut(splits=16),
    "block 256": LoraCut(block=256),
    "block 64": LoraCut(block=64, splits=16),
    "shrink warps 2": LoraCut(shrink_warps=2),
    "shrink warps 8": LoraCut(shrink_warps=8),
    "rows 64": LoraCut(rows=64),
    "rows 256": LoraCut(rows=256),
    "rows 64 warps 2": LoraCut(rows=64, expand_warps=2),
    "gated 128": LoraCut(gated_rows=128),
    "gated 32": LoraCut(gated_rows=32),
    "gated warps 2": LoraCut(gated_warps=2),
    "gated warps 8": LoraCut(gated_warps=8, gated_rows=128),
}


class Layers:
    def __init__(self, tokens: int, device: torch.device, dtype: torch.dtype, divisor: int) -> None:
        self.shapes = [(tuple(size // divisor for size in sizes), size // divisor) for sizes, size in SHAPES]
        self.x = {size: torch.randn((tokens, size), device=device, dtype=dtype) for _, size in self.shapes}
        self.weights = [
            [torch.randn((sum(sizes), size), device=device, dtype=dtype) * size**-0.5 for sizes, size in self.shapes]
            for _ in range(LAYERS)
        ]
        self.banks = [[self._bank(sizes, size, device, dtype) for sizes, size in self.shapes] for _ in range(LAYERS)]
        self.side = torch.cuda.Stream() if device.type == "cuda" else None

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

    def adapted(self, slots: Tensor, *, is_aside: bool) -> None:
        groups = group_tokens(slots, SLOTS)
        for weights, banks in zip(self.weights, self.banks):
            for number, ((sizes, size), weight, bank) in enumerate(zip(self.shapes, weights, banks)):
                x = self.x[size]
                if is_aside and self.side is not None:
                    self.side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(self.side):
                        shrunk = lora.shrink(x, groups, bank, len(sizes))
                    y = functional.linear(x, weight)
                    torch.cuda.current_stream().wait_stream(self.side)
                else:
                    y = functional.linear(x, weight)
                    shrunk = lora.shrink(x, groups, bank, len(sizes))
                if number == 2:
                    lora.expand_gated(y, shrunk, None, groups, bank, sizes, "silu")
                else:
                    lora.expand(y, shrunk, None, groups, bank, sizes)


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
    for is_aside, (name, cut) in itertools.product((False, True), CUTS.items()):
        if is_aside and name not in ("as it is", "splits 4"):
            continue
        lora.CUT = cut
        found = {
            n: timed(lambda chosen=chosen, is_aside=is_aside: layers.adapted(chosen, is_aside=is_aside), asked.dry)
            - plain
            for n, chosen in slots.items()
        }
        figures = "  ".join(f"{n}: +{each:5.1f}" for n, each in found.items())
        print(f"{'aside, ' if is_aside else ''}{name:20} {figures}", flush=True)


if __name__ == "__main__":
    main()
