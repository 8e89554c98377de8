"""Attention of single queries at the shapes of Llama-3.1-8B and Qwen3-0.6B: ways of cutting the work.

python -m benchmarks.gpu.tune_decode [--dry] [--only NAME] [--json FILE]

Contexts are even, or spread as in a batch of chats, longest first as the runner orders them.
"""

import random
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run
from benchmarks.gpu.tune_kv import KINDS
from penstock.runtime.models.spec import GQA, Rope
from penstock.runtime.ops.layout import AnyCache, BatchLayout

BLOCK_SIZE = 16
SHAPES = [(32, 2, 2), (32, 2, 4), (64, 2, 3), (64, 4, 2), (64, 4, 3), (64, 8, 2), (128, 4, 2), (128, 4, 3), (128, 8, 2)]
GROUPS = {"8b": 4, "0.6b": 2}


def spread(count: int, is_even: bool, most: int) -> list[int]:
    if is_even:
        return [most] * count
    numbers = random.Random(count)
    return sorted((numbers.randint(100, most) for _ in range(count)), reverse=True)


class Inputs:
    def __init__(self, place: Place, group: int, contexts: list[int], kind: str) -> None:
        from penstock.runtime.ops.kv_write import empty_cache, kv_write
        from tests.ops.examples.attention import example_layout

        kv_heads, head_dim = place.size(8, 2), place.size(128, 16)
        self.spec = GQA(kv_heads * group, kv_heads, head_dim, Rope(head_dim), head_dim**-0.5)
        generator = torch.Generator(place.device).manual_seed(0)
        num_blocks = len(contexts) * -(-max(contexts) // BLOCK_SIZE)
        lengths = [1] * len(contexts)
        self.layouts = [example_layout(lengths, contexts, BLOCK_SIZE, num_blocks, generator) for _ in range(NUM_SETS)]
        shape = (num_blocks, BLOCK_SIZE, kv_heads, head_dim)
        self.cache: AnyCache = empty_cache(shape, KINDS[kind] or place.dtype, place.device)
        slots = torch.arange(num_blocks * BLOCK_SIZE, device=place.device)
        new = torch.empty((2, len(slots), kv_heads, head_dim), dtype=place.dtype, device=place.device)
        kv_write(*new.normal_(generator=generator), self.cache, slots)
        q = torch.empty((NUM_SETS, len(contexts), kv_heads * group, head_dim), dtype=place.dtype, device=place.device)
        self.q = q.normal_(generator=generator)
        self.out = torch.empty_like(self.q[0])

    def attend(self, config: object, number: int) -> Tensor:
        from penstock.runtime.ops.triton.attend.decode import Singles, attend_singles
        from penstock.runtime.ops.triton.host.tile_table import TileConfig

        layout: BatchLayout = self.layouts[number]
        layout.derived.clear()
        q = self.q[number]
        made = None if config is None else TileConfig(1, *config)  # type: ignore[misc]
        attend_singles(q, self.cache, layout, self.spec, None, Singles(len(q)), self.out, config=made)
        return self.out


def build(place: Place) -> list[Case]:
    batches = [
        ("8b", 256, True, 1024, ("16-bit", "float8", "int8")),
        ("8b", 256, False, 1600, ("16-bit", "float8")),
        ("8b", 96, False, 2000, ("16-bit", "float8")),
        ("8b", 128, True, 192, ("16-bit", "float8")),
        ("8b", 32, True, 192, ("16-bit", "float8")),
        ("0.6b", 256, False, 1600, ("16-bit",)),
        ("0.6b", 40, False, 2000, ("16-bit",)),
    ]
    cases = []
    for model, count, is_even, most, kinds in batches if not place.is_dry else batches[:1]:
        contexts = spread(place.size(count, 3), is_even, place.size(most, 40))
        for kind in kinds:
            inputs = Inputs(place, GROUPS[model], contexts, kind)
            moved = 2.0 * sum(contexts) * inputs.spec.kv_size * inputs.cache.keys.element_size()
            name = f"{model} {count}x{'' if is_even else '100-'}{most} {kind}"
            cases.append(Case(name, "as it is", partial(inputs.attend, None), moved))
            all_splits = (1, 2, 4) if count * 8 > 1000 else (1, 2, 4, 8)
            for shape in SHAPES if not place.is_dry else SHAPES[:2]:
                for splits in all_splits:
                    config = (*shape, splits)
                    cases.append(Case(name, str(config), partial(inputs.attend, config), moved))
    return cases


def check(place: Place) -> list[Check]:
    from penstock.runtime.ops.attention import attention

    checks = []
    for kind in KINDS:
        contexts = [900, 300, 17, 1] if not place.is_dry else [30, 17, 1]
        inputs = Inputs(place, 4, contexts, kind)
        truth = attention.definition(inputs.q[0].float(), inputs.cache, inputs.layouts[0], inputs.spec, None)
        for config in (None, (64, 4, 3, 1), (32, 2, 2, 4)):
            mine = inputs.attend(config, 0)
            checks.append((f"{kind} {config} against its definition", relative_error(mine, truth), 1e-2))
    return checks


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.tune_decode")
