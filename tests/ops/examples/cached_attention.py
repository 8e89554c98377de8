"""Arguments of the operations of `ops.cached_attention`."""

from collections.abc import Iterator
from typing import Any

import torch

from penstock.runtime.models.spec import GQA, Rope
from penstock.runtime.ops.cached_attention import cached_attention
from penstock.runtime.ops.kv_write import HeadNorms
from penstock.runtime.ops.layout import LayerCache
from penstock.runtime.ops.rope import angle_table
from tests.ops.examples import examples_of
from tests.ops.examples.attention import example_cache, example_layout


@examples_of(cached_attention)
def _examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    """Decodes of contexts around block and window borders, mixed steps, one of them sharing; each way of preparing heads."""
    generator = torch.Generator(device).manual_seed(15)
    ones = torch.ones(64, device=device)
    shapes = [
        (GQA(4, 4, 16, Rope(16), 0.25), None),
        (GQA(6, 2, 32, Rope(16), 0.3, window=5), None),
        (GQA(4, 2, 64, Rope(64), 0.125, window=9, sinks=True), HeadNorms(ones * 2, ones * 0.5, 1e-6)),
        (GQA(8, 1, 64, None, 0.2, logit_softcap=3.0), None),
    ]
    batches = [([1], [1]), ([1, 1, 1, 1], [7, 8, 9, 65]), ([3, 1, 1], [20, 64, 33])]
    for dtype in (torch.float32, torch.float16):
        for spec, norms in shapes:
            for lengths, contexts in batches:
                layout = example_layout(lengths, contexts, 8, 40, generator)
                cache = torch.randn((2, 40, 8, spec.num_kv_heads, spec.head_dim), generator=generator, device=device)
                width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
                qkv = torch.randn((sum(lengths), width), generator=generator, device=device).to(dtype)
                sinks = torch.randn(spec.num_heads, generator=generator, device=device) if spec.sinks else None
                angles = None if spec.rope is None else angle_table(spec.rope, 128, device).at(layout.positions)
                yield qkv, spec, norms, angles, LayerCache(*cache.to(dtype)), layout, sinks
    layout = example_layout([20, 4, 1], [20, 14, 9], 8, 40, generator)
    layout.block_tables[1:, 0] = layout.block_tables[0, 0]  # later chunks begin with a block that the first one fills
    cache = torch.zeros((2, 40, 8, 2, 16), device=device)
    qkv = torch.randn((25, 128), generator=generator, device=device)
    yield qkv, GQA(4, 2, 16, None, 0.25), None, None, LayerCache(*cache), layout, None
    for cache_dtype in (torch.float8_e4m3fn, torch.int8):
        layout = example_layout([1, 1, 1], [7, 8, 65], 8, 40, generator)
        qkv = torch.randn((3, 128), generator=generator, device=device)
        angles = angle_table(Rope(16), 128, device).at(layout.positions)
        held = example_cache((40, 8, 2, 16), cache_dtype, generator)
        yield qkv, GQA(4, 2, 16, Rope(16), 0.25), None, angles, held, layout, None
