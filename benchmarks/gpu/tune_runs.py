"""Attention of prompts at the shapes of Llama-3.1-8B and Qwen3-0.6B: ways of cutting the work, and the library's own.

python -m benchmarks.gpu.tune_runs [--dry] [--only NAME] [--json FILE]
"""

import random
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run
from penstock.runtime.models.spec import GQA, Rope
from penstock.runtime.ops.layout import LayerCache

BLOCK_SIZE = 16
TILE_CONFIGS = [
    (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 2), (128, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3),
    (128, 32, 4, 3), (64, 128, 4, 2), (64, 32, 4, 3), (128, 128, 8, 3),
]  # fmt: skip
HEADS = {"8b": 32, "0.6b": 16}


class Inputs:
    def __init__(self, place: Place, num_heads: int, lengths: list[int], contexts: list[int]) -> None:
        from tests.ops.examples.attention import example_layout

        kv_heads, head_dim = place.size(8, 2), place.size(128, 16)
        self.spec = GQA(place.size(num_heads, 4), kv_heads, head_dim, Rope(head_dim), head_dim**-0.5)
        generator = torch.Generator(place.device).manual_seed(0)
        num_blocks = len(contexts) * -(-max(contexts) // BLOCK_SIZE)
        self.layout = example_layout(lengths, contexts, BLOCK_SIZE, num_blocks, generator)
        shape = (2, num_blocks, BLOCK_SIZE, kv_heads, head_dim)
        parts = torch.empty(shape, dtype=place.dtype, device=place.device).normal_(generator=generator)
        self.cache = LayerCache(*parts)
        shape = (NUM_SETS, sum(lengths), self.spec.num_heads, head_dim)
        self.q = torch.empty(shape, dtype=place.dtype, device=place.device).normal_(generator=generator)
        self.out = torch.empty_like(self.q[0])
        pairs = zip(lengths, contexts)
        seen = sum(length * context - length * (length - 1) / 2 for length, context in pairs)
        self.flops = 4.0 * seen * self.spec.num_heads * head_dim

    def attend(self, numbers: tuple[int, int, int, int], number: int) -> Tensor:
        from penstock.runtime.ops.triton.attend.runs import attend_runs, plan_of
        from penstock.runtime.ops.triton.host.tile_table import TileConfig

        config = TileConfig(*numbers)
        plan = self.layout.derived.get(config.rows)
        if plan is None:
            plan = self.layout.derived[config.rows] = plan_of(self.layout, config.rows, BLOCK_SIZE)
        attend_runs(self.q[number], self.cache, self.layout, self.spec, None, plan.tiles, self.out, config)
        return self.out

    def dense(self, number: int) -> Tensor:
        """The library over keys that are not paged, prompts of one length; what reading the pages costs is left out."""
        count, length = len(self.layout.lengths), self.layout.lengths[0]
        parts = (part.flatten(0, 1)[: count * length].unflatten(0, (count, length)) for part in self.cache)
        keys, values = (part.transpose(1, 2) for part in parts)
        queries = self.q[number].unflatten(0, (count, length)).transpose(1, 2)
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)


def build(place: Place) -> list[Case]:
    numbers = random.Random(1)
    mixed = [numbers.randint(100, 1024) for _ in range(14)]
    batches = {
        "16 x 512": ([512] * 16, [512] * 16),
        "14 x 100-1024": (mixed, mixed),
        "1 x 4000": ([4000], [4000]),
        "512 behind 3000": ([512], [3512]),
    }
    if place.is_dry:
        batches = {"prompts": ([5, 9], [5, 30])}
    cases = []
    for model, num_heads in HEADS.items():
        for name, (lengths, contexts) in batches.items():
            inputs = Inputs(place, num_heads, lengths, contexts)
            group = f"{model} {name}"
            for config in TILE_CONFIGS if not place.is_dry else TILE_CONFIGS[5:6]:
                cases.append(Case(group, str(config), partial(inputs.attend, config), 0, inputs.flops))
            if len(set(lengths)) == 1 and lengths == contexts:
                cases.append(Case(group, "library", inputs.dense, 0, inputs.flops))
    return cases


def check(place: Place) -> list[Check]:
    from penstock.runtime.ops.attention import attention

    lengths, contexts = ([300, 5, 128], [300, 700, 1000]) if not place.is_dry else ([5, 9], [5, 30])
    inputs = Inputs(place, 32, lengths, contexts)
    truth = attention.definition(inputs.q[0].float(), inputs.cache, inputs.layout, inputs.spec, None)
    configs = TILE_CONFIGS if not place.is_dry else TILE_CONFIGS[5:6]
    return [(f"{config}", relative_error(inputs.attend(config, 0), truth), 1e-2) for config in configs]


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.tune_runs")
