"""Attention over the cache as one operation: heads normed and rotated, keys and values written, queries computed."""

from torch import Tensor

from penstock.runtime.models.spec import GQA
from penstock.runtime.ops.attention import attention
from penstock.runtime.ops.kv_write import HeadNorms, place_qkv
from penstock.runtime.ops.layout import AnyCache, BatchLayout
from penstock.runtime.ops.op import operation
from penstock.runtime.ops.rope import Angles


@operation
def cached_attention(
    qkv: Tensor,
    spec: GQA,
    norms: HeadNorms | None,
    angles: Angles | None,
    cache: AnyCache,
    layout: BatchLayout,
    sinks: Tensor | None,
) -> Tensor:
    """Norms and rotates q and k, writes k and v to the cache, and lets each query attend: [tokens, heads, head_dim]."""
    q = place_qkv(qkv, spec, norms, angles, cache, layout.slots)
    return attention(q, cache, layout, spec, sinks)
