"""Mixtures of experts of the Qwen3-30B-A3B shape: parity in bfloat16, and ways of cutting each launch.

python -m benchmarks.gpu.tune_moe [--dry] [--only NAME] [--json FILE]
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run
from penstock.runtime.models.spec import GatedMLP, MoE

PAIR_CUTS = [(1, 2048, 4), (1, 2048, 8), (2, 2048, 8), (4, 1024, 4), (2, 1024, 4), (4, 512, 4), (8, 512, 8)]
TOKEN_CUTS = [(1, 256, 2), (2, 256, 4), (4, 256, 4), (8, 256, 4), (1, 1024, 4), (2, 1024, 4), (4, 1024, 8), (2, 512, 4)]
NARROW_CUTS = [(16, 256, 4, 3), (32, 128, 4, 4), (32, 256, 4, 3), (64, 128, 4, 3), (64, 64, 4, 5), (32, 64, 4, 6)]
WIDE_CUTS = [(64, 64, 4, 4), (128, 64, 8, 3), (64, 64, 8, 4), (128, 64, 8, 4), (128, 32, 8, 5)]


Sets = list[tuple[Tensor, Tensor, Tensor]]
"""x, weights and choices of some tokens, several times."""


def spec_of(place: Place) -> MoE:
    return MoE(place.size(128, 6), place.size(8, 2), GatedMLP(place.size(768, 32), "silu"), True)


class Inputs:
    """One stack of experts, and sets of tokens with their choices."""

    def __init__(self, place: Place) -> None:
        from penstock.runtime.ops.moe import Experts

        self.spec = spec_of(place)
        self.size = place.size(2048, 64)
        self.place = place
        self.generator = torch.Generator(place.device).manual_seed(0)
        count, width = self.spec.num_experts, self.spec.expert.width
        gate_up = self.normal(count, 2 * width, self.size) * self.size**-0.5
        self.experts = Experts(gate_up, self.normal(count, self.size, width) * width**-0.5, None, None)

    def normal(self, *shape: int) -> Tensor:
        values = torch.empty(shape, dtype=self.place.dtype, device=self.place.device)
        return values.normal_(generator=self.generator)

    def tokens(self, num_tokens: int) -> Sets:
        """x, weights and choices, NUM_SETS times."""
        from penstock.runtime.ops.moe import route

        drawn = []
        for _ in range(NUM_SETS):
            scores = self.normal(num_tokens, self.spec.num_experts)
            drawn.append((self.normal(num_tokens, self.size), *route(scores, self.spec)))
        return drawn

    def matrix_bytes(self, sets: Sets, parts: int) -> float:
        """Bytes of the matrices chosen, of which an expert has three equal parts."""
        num_chosen = sum(len(torch.unique(chosen)) for _, _, chosen in sets) / len(sets)
        return num_chosen * parts * self.spec.expert.width * self.size * self.experts.down.element_size()


def _gate_pairs(inputs: Inputs, sets: Sets, config: Any, number: int) -> Tensor:
    from penstock.runtime.ops.triton import moe

    x, _, chosen = sets[number]
    return moe.gate_pairs(x, chosen, inputs.experts, inputs.spec, config)


def _down_tokens(inputs: Inputs, sets: Sets, inner: list[Tensor], config: Any, number: int) -> Tensor:
    from penstock.runtime.ops.triton import moe

    _, weights, chosen = sets[number]
    return moe.down_tokens(inner[number], weights, chosen, inputs.experts, inputs.spec, config)


def _gate_tiles(inputs: Inputs, sets: Sets, groups: list[Any], tile: int, config: Any, number: int) -> Tensor:
    from penstock.runtime.ops.triton import moe

    return moe.gate_tiles(sets[number][0], groups[number], inputs.experts, inputs.spec, tile, config)


def _down_tiles(inputs: Inputs, inner: list[Tensor], groups: list[Any], tile: int, config: Any, number: int) -> Tensor:
    from penstock.runtime.ops.triton import moe

    return moe.down_tiles(inner[number], groups[number], inputs.experts, tile, config)


def _mix(inputs: Inputs, sets: Sets, kernel: Callable[..., Tensor], number: int) -> Tensor:
    return kernel(*sets[number], inputs.experts, inputs.spec)


def build(place: Place) -> list[Case]:
    from penstock.runtime.ops.triton import moe
    from penstock.runtime.ops.triton.grouped.sorting import sort_pairs
    from penstock.runtime.ops.triton.host.tile_table import TileConfig, tiles_of

    inputs = Inputs(place)
    experts, spec = inputs.experts, inputs.spec
    cases = []
    for num_tokens in (1, 32, place.size(256, 3), place.size(4000, 5)):
        scores = [inputs.normal(num_tokens, spec.num_experts) for _ in range(NUM_SETS)]
        chosen = [moe.route_tokens(each, spec)[1] for each in scores]
        cases.append(Case(f"route {num_tokens}", "", lambda n, s=scores: moe.route_tokens(s[n], spec)))
        cases.append(Case(f"sort {num_tokens}", "", lambda n, c=chosen: sort_pairs(c[n], spec.num_experts, 16)))
    for num_tokens in (1, 2, 4):
        sets = inputs.tokens(num_tokens)
        inner = [moe.gate_pairs(x, chosen, experts, spec, tiles_of("expert pairs")) for x, _, chosen in sets]
        for numbers in PAIR_CUTS:
            gate = partial(_gate_pairs, inputs, sets, TileConfig(*numbers))
            cases.append(Case(f"gate pairs {num_tokens}", str(numbers), gate, inputs.matrix_bytes(sets, 2)))
        for numbers in TOKEN_CUTS:
            down = partial(_down_tokens, inputs, sets, inner, TileConfig(*numbers))
            cases.append(Case(f"down tokens {num_tokens}", str(numbers), down, inputs.matrix_bytes(sets, 1)))
    for num_tokens, tiles in ((2, (16,)), (8, (16,)), (32, (16,)), (256, (16, 32)), (512, (32, 64)), (4000, (64, 128))):
        cases += tiled_cases(inputs, place.size(num_tokens, min(num_tokens, 9)), tiles)
    for num_tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, place.size(4000, 40)):
        sets = inputs.tokens(place.size(num_tokens, min(num_tokens, 9)))
        moved, work = inputs.matrix_bytes(sets, 3), num_tokens * spec.num_active * 6 * spec.expert.width * inputs.size
        if num_tokens <= 16:
            pairs = partial(_mix, inputs, sets, moe.mix_by_pairs)
            cases.append(Case(f"mix {num_tokens}", "pairs", pairs, moved, work))
        tiled = partial(_mix, inputs, sets, moe.mix_by_tiles)
        cases.append(Case(f"mix {num_tokens}", "tiles", tiled, moved, work))
    return cases


def tiled_cases(inputs: Inputs, num_tokens: int, tiles: tuple[int, ...]) -> list[Case]:
    from penstock.runtime.ops.triton import moe
    from penstock.runtime.ops.triton.grouped.sorting import sort_pairs
    from penstock.runtime.ops.triton.host.tile_table import TileConfig

    experts, spec = inputs.experts, inputs.spec
    sets = inputs.tokens(num_tokens)
    cases = []
    for tile in tiles:
        groups = [sort_pairs(chosen, spec.num_experts, tile) for _, _, chosen in sets]
        default = TileConfig(32, 64, 4, 3)
        inner = [moe.gate_tiles(x, group, experts, spec, tile, default) for (x, _, _), group in zip(sets, groups)]
        work = 2 * num_tokens * spec.num_active * spec.expert.width * inputs.size
        for numbers in NARROW_CUTS if tile <= 32 else WIDE_CUTS:
            config, label = TileConfig(*numbers), f"{tile}:{numbers}"
            gate = partial(_gate_tiles, inputs, sets, groups, tile, config)
            down = partial(_down_tiles, inputs, inner, groups, tile, config)
            cases.append(Case(f"gate tiles {num_tokens}", label, gate, inputs.matrix_bytes(sets, 2), 2 * work))
            cases.append(Case(f"down tiles {num_tokens}", label, down, inputs.matrix_bytes(sets, 1), work))
    return cases


def check(place: Place) -> list[Check]:
    from penstock.runtime.ops.moe import Experts, mix_experts

    inputs = Inputs(place)
    wide = Experts(inputs.experts.gate_up.float(), inputs.experts.down.float(), None, None)
    checks = []
    for num_tokens in (1, 3, 16, 100, 700, 2000) if not place.is_dry else (1, 9):
        (x, weights, chosen), *_ = inputs.tokens(num_tokens)
        reference = mix_experts.definition(x.float(), weights, chosen, wide, inputs.spec)
        for kernel in mix_experts.kernels["cuda"]:
            if kernel.fits(x, weights, chosen, inputs.experts, inputs.spec):
                mine = kernel.run(x, weights, chosen, inputs.experts, inputs.spec)
                checks.append((f"{kernel.name} {num_tokens} tokens", relative_error(mine, reference), 1e-2))
    return checks


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.tune_moe")
