"""Attention over a cache in bfloat16, 8-bit floats and 8-bit whole numbers: error and time at the Llama-3.1-8B shape.

python -m benchmarks.gpu.tune_kv [--dry] [--only NAME] [--json FILE]
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.candidates import NUM_SETS, Case, Check, Place, relative_error, run
from penstock.runtime.models.spec import GQA, Rope

BLOCK_SIZE = 16
KINDS = {"16-bit": None, "float8": torch.float8_e4m3fn, "int8": torch.int8}


def spec_of(place: Place) -> GQA:
    head_dim = place.size(128, 16)
    return GQA(place.size(32, 4), place.size(8, 2), head_dim, Rope(head_dim), head_dim**-0.5)


class Inputs:
    """Chunks of equal length over caches of every kind that were given the same keys and values."""

    def __init__(self, place: Place, lengths: list[int], contexts: list[int]) -> None:
        from penstock.runtime.ops.kv_write import empty_cache, kv_write
        from tests.ops.examples.attention import example_layout

        self.spec = spec_of(place)
        self.generator = torch.Generator(place.device).manual_seed(0)
        num_blocks = sum(-(-max(contexts) // BLOCK_SIZE) for _ in contexts)
        self.layouts = [
            example_layout(lengths, contexts, BLOCK_SIZE, num_blocks, self.generator) for _ in range(NUM_SETS)
        ]
        shape = (num_blocks, BLOCK_SIZE, self.spec.num_kv_heads, self.spec.head_dim)
        self.place = place
        slots = torch.arange(num_blocks * BLOCK_SIZE, device=place.device)
        keys, values = (self.normal(len(slots), *shape[2:]) for _ in range(2))
        self.caches = {name: empty_cache(shape, dtype or place.dtype, place.device) for name, dtype in KINDS.items()}
        for cache in self.caches.values():
            kv_write(keys, values, cache, slots)
        tokens = sum(lengths)
        self.q = [self.normal(tokens, self.spec.num_heads, self.spec.head_dim) for _ in range(NUM_SETS)]
        width = (self.spec.num_heads + 2 * self.spec.num_kv_heads) * self.spec.head_dim
        self.qkv = [self.normal(tokens, width) for _ in range(NUM_SETS)]

    def normal(self, *shape: int) -> Tensor:
        values = torch.empty(shape, dtype=self.place.dtype, device=self.place.device)
        return values.normal_(generator=self.generator)


def _attend(inputs: Inputs, cache: Any, number: int) -> Tensor:
    from penstock.runtime.ops.attention import attention

    return attention(inputs.q[number], cache, inputs.layouts[number], inputs.spec, None)


def _whole(inputs: Inputs, cache: Any, angles: list[Any], number: int) -> Tensor:
    from penstock.runtime.ops.cached_attention import cached_attention

    layout = inputs.layouts[number]
    return cached_attention(inputs.qkv[number], inputs.spec, None, angles[number], cache, layout, None)


def build(place: Place) -> list[Case]:
    from penstock.runtime.ops.rope import angle_table

    batches = {
        "decode 1 at 256": ([1], [256]),
        "decode 1 at 4000": ([1], [4000]),
        "decode 32 at 256": ([1] * 32, [256] * 32),
        "decode 128 at 256": ([1] * 128, [256] * 128),
        "decode 256 at 1024": ([1] * 256, [1024] * 256),
        "prompt of 4000": ([4000], [4000]),
        "8 prompts of 512": ([512] * 8, [512] * 8),
        "512 behind 3000": ([512], [3512]),
    }
    if place.is_dry:
        batches = {"decode 2 at 20": ([1, 1], [20, 20]), "prompts": ([5, 9], [5, 30])}
    cases = []
    for name, (lengths, contexts) in batches.items():
        inputs = Inputs(place, lengths, contexts)
        table = angle_table(inputs.spec.rope, max(contexts), place.device)
        angles = [table.at(layout.positions) for layout in inputs.layouts]
        for kind, cache in inputs.caches.items():
            moved = 2.0 * sum(contexts) * inputs.spec.kv_size * cache.keys.element_size()
            moved = moved if max(lengths) == 1 else 0.0
            cases.append(Case(name, kind, partial(_attend, inputs, cache), moved))
            cases.append(Case(f"{name}, keys written", kind, partial(_whole, inputs, cache, angles), moved))
    return cases


def check(place: Place) -> list[Check]:
    """Kernels against the definition over the same cache, then what each kind of cache costs in accuracy."""
    from penstock.runtime.ops.attention import attention
    from penstock.runtime.ops.layout import LayerCache

    most = {"16-bit": 1e-2, "float8": 6e-2, "int8": 2e-2}
    checks = []
    for lengths, contexts in (([1, 1, 1], [17, 300, 1000]), ([70, 1, 200], [70, 33, 900])):
        if place.is_dry:
            lengths, contexts = [1, 3], [17, 20]
        inputs = Inputs(place, lengths, contexts)
        exact = LayerCache(*(part.float() for part in inputs.caches["16-bit"]))
        truth = attention.definition(inputs.q[0].float(), exact, inputs.layouts[0], inputs.spec, None)
        for kind, cache in inputs.caches.items():
            mine = _attend(inputs, cache, 0)
            same = attention.definition(inputs.q[0].float(), cache, inputs.layouts[0], inputs.spec, None)
            checks.append((f"{kind} {lengths} against its definition", relative_error(mine, same), 1e-2))
            checks.append((f"{kind} {lengths} against exact keys", relative_error(mine, truth), most[kind]))
    return checks


if __name__ == "__main__":
    run(build, check, "benchmarks.gpu.tune_kv")
